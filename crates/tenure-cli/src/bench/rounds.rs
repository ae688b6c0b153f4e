//! Rounds: in each of them everything that is compared takes its turn, and every turn begins alike.

use std::sync::Arc;

use anyhow::Result;

use super::options::Scene;
use super::payload::Payloads;
use super::place::Place;
use super::population::{Pin, populate};
use super::progress::say;
use super::report::Run;

/// What is compared: in words, and as it is measured.
pub type Turn<S> = (String, S);

/// Makes the scene once, and measures every setting so many times in it.
///
/// # Errors
/// The database fails, or a measurement.
pub async fn in_turns<S: Copy>(
    place: &Place,
    scene: &Scene,
    rounds: u32,
    turns: &[Turn<S>],
    measure: impl AsyncFn(S, &Arc<Payloads>) -> Result<Run>,
) -> Result<Vec<Run>> {
    let payloads = Arc::new(Payloads::new(scene.payload)?);
    populate(place, scene, &payloads).await?;
    let mut runs = Vec::new();
    for round in 1..=rounds {
        for (words, setting) in turns {
            say(&format!("round {round}: {words}"));
            place.prepare(scene).await?;
            let pin = Pin::open(place, scene).await?;
            let run = measure(*setting, &payloads).await?;
            pin.close().await?;
            runs.push(run.in_round(round));
        }
    }
    Ok(runs)
}
