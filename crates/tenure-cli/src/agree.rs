//! Asks before much is done that cannot be taken back.

use std::io::{IsTerminal, Write};

use crate::exit::Failure;

/// Asks where somebody can answer, and refuses with `nobody` where nobody can.
pub fn agreed(question: &str, nobody: &str) -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Failure::Usage(nobody.to_owned()));
    }
    eprint!("{question} [y/N] ");
    std::io::stderr().flush()?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
}
