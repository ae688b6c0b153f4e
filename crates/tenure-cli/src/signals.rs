//! Ctrl-C and SIGTERM, as a stream that a command waits on.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A wish of the outside world that this process should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT: Ctrl-C. A terminal sends it to the children of this process as well.
    Interrupt,
    /// SIGTERM: sent to this process alone.
    Terminate,
}

/// Both signals. From its making on, neither ends the process by itself.
#[derive(Debug)]
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    /// Takes over both signals.
    pub fn listen() -> std::io::Result<Self> {
        Ok(Signals { interrupt: signal(SignalKind::interrupt())?, terminate: signal(SignalKind::terminate())? })
    }

    /// Waits for the next one. Cancel-safe.
    pub async fn next(&mut self) -> Stop {
        tokio::select! {
            _ = self.interrupt.recv() => Stop::Interrupt,
            _ = self.terminate.recv() => Stop::Terminate,
        }
    }
}
