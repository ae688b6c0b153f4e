//! The demo's child processes: started with a pipe on stdin, ended when the pipe is closed.

use tokio::io::AsyncReadExt as _;

/// Returns when stdin ends, which it does when the parent closes it or dies.
pub async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    let mut sink = [0_u8; 64];
    while matches!(stdin.read(&mut sink).await, Ok(1..)) {}
}
