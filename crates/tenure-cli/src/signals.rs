//! Ctrl-C, SIGTERM and the end of the terminal, as a stream that a command waits on.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A wish of the outside world that this process should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT: Ctrl-C. A terminal sends it to the children of this process as well.
    Interrupt,
    /// SIGTERM, or SIGHUP because the terminal is gone.
    Terminate,
}

/// The signals. From its making on, none of them ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Option<Signal>,
}

impl Signals {
    /// Takes over the signals.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: if hangup_is_ignored() { None } else { Some(signal(SignalKind::hangup())?) },
        })
    }

    /// Waits for the next one. Cancel-safe.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
            Some(_) = received(&mut self.hangup) => Stop::Terminate,
        }
    }
}

/// The next SIGHUP; none at once when nobody listens to it, which disables a branch of `select!`.
async fn received(signal: &mut Option<Signal>) -> Option<()> {
    signal.as_mut()?.recv().await
}

/// True under nohup, which means that the end of the terminal is not for us.
fn hangup_is_ignored() -> bool {
    // SAFETY: the call writes the present action into `action` and changes nothing.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(libc::SIGHUP, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}
