//! Makes the cluster of a standby: a copy of a running server's data, with the note where to stream from.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use crate::find::Binaries;
use crate::home::{Cluster, Home};

/// Copies the data of the server of `url`, whose folder is `from`, into `home`.
pub(crate) fn copy(url: &str, from: &Home, home: &Home, binaries: &Binaries) -> Result<Cluster> {
    let primary = from.cluster()?.with_context(|| format!("{} has no cluster to copy", from.dir.display()))?;
    home.account.check_reach(&binaries.dir, &home.dir)?;
    let mut command = home.account.command(&binaries.dir.join("pg_basebackup"), &home.dir);
    command.arg("--pgdata").arg(home.data()).args(["--dbname", url]);
    // The copy is thrown away with its server, so nothing of it need be synced.
    command.args(["--write-recovery-conf", "--wal-method=stream", "--checkpoint=fast", "--no-sync"]);
    let output = command.stdin(Stdio::null()).output().context("cannot start pg_basebackup")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pg_basebackup: {}: {}", output.status, said.trim());
    let cluster = Cluster { bin_dir: binaries.dir.clone(), ..primary };
    home.note(&cluster)?;
    Ok(cluster)
}
