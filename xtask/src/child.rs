//! Programs that the commands run. Ctrl-C and SIGTERM are for them: this process stays, to stop the server afterwards.

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;
#[cfg(feature = "prove")]
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, Result, bail};

/// The process to which signals are passed on; 0 when there is none.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// The signal that came, or 0.
static CAUGHT: AtomicI32 = AtomicI32::new(0);

/// Runs a program to its end.
///
/// # Errors
/// It cannot be started, it fails, or a signal came meanwhile.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    catch_signals();
    stop_if_caught()?;
    let mut child = command.spawn().with_context(|| format!("cannot start {shown}"))?;
    CHILD.store(child.id().cast_signed(), Ordering::SeqCst);
    let status = child.wait();
    CHILD.store(0, Ordering::SeqCst);
    stop_if_caught()?;
    match status? {
        status if status.success() => Ok(()),
        status => bail!("{shown}: {status}"),
    }
}

/// Runs a program to its end and gives what it printed; its words on stderr are passed on.
///
/// # Errors
/// As [`run`].
#[cfg(feature = "prove")]
pub(crate) fn output(command: &mut Command) -> Result<Vec<u8>> {
    match output_and_status(command)? {
        (printed, status) if status.success() => Ok(printed),
        (_, status) => bail!("{}: {status}; its message is above", shown(command)),
    }
}

/// The same for a program whose failure does not make worthless what it printed.
///
/// # Errors
/// It cannot be started, or a signal came meanwhile.
#[cfg(feature = "prove")]
pub(crate) fn output_and_status(command: &mut Command) -> Result<(Vec<u8>, ExitStatus)> {
    let shown = shown(command);
    catch_signals();
    stop_if_caught()?;
    let child = command.stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
    let child = child.with_context(|| format!("cannot start {shown}"))?;
    CHILD.store(child.id().cast_signed(), Ordering::SeqCst);
    let output = child.wait_with_output();
    CHILD.store(0, Ordering::SeqCst);
    stop_if_caught()?;
    output.map(|output| (output.stdout, output.status)).with_context(|| format!("{shown} was not heard to its end"))
}

/// A call of cargo, as it would be from a shell: `cargo run` sets variables for this process of which some make cargo
/// build dependencies anew.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os() {
        let name = name.to_string_lossy().into_owned();
        if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") || name == "CARGO_PRIMARY_PACKAGE" {
            command.env_remove(name);
        }
    }
    command.args(args);
    command
}

/// The folder of the workspace.
pub(crate) fn workspace() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or(command.get_program());
    let words: Vec<_> = std::iter::once(program).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
    words.join(" ")
}

/// The signal that came: nothing more can be started.
pub(crate) fn caught() -> Option<i32> {
    Some(CAUGHT.load(Ordering::SeqCst)).filter(|signal| *signal != 0)
}

fn stop_if_caught() -> Result<()> {
    match caught() {
        None => Ok(()),
        Some(signal) => bail!("stopped by signal {signal}"),
    }
}

fn catch_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let handler = if signal == libc::SIGINT && std::io::stdin().is_terminal() { note } else { pass_on };
        // SAFETY: both handlers only use atomics and kill(2), which may be called in a handler. A program that is
        // started gets the default action again.
        unsafe {
            let before = libc::signal(signal, handler as *const () as libc::sighandler_t);
            // Under nohup the end of the terminal is not for us.
            if signal == libc::SIGHUP && before == libc::SIG_IGN {
                libc::signal(signal, libc::SIG_IGN);
            }
        }
    }
}

/// Ctrl-C in a terminal: the child has got it as well.
extern "C" fn note(signal: libc::c_int) {
    CAUGHT.store(signal, Ordering::SeqCst);
}

extern "C" fn pass_on(signal: libc::c_int) {
    CAUGHT.store(signal, Ordering::SeqCst);
    let child = CHILD.load(Ordering::SeqCst);
    if child > 0 {
        // SAFETY: no memory is involved. The child is reaped right before the number is forgotten, and numbers are
        // not given again within that time.
        unsafe { libc::kill(child, signal) };
    }
}
