//! Payloads of a given size.

use anyhow::Result;
use tenure::RawJson;

/// So many different ones take turns.
const DIFFERENT: usize = 64;
const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_";

/// Payloads that are alike in size and differ in content, which looks random, so that the server has nothing to compress.
#[derive(Debug)]
pub struct Payloads(Vec<RawJson>);

impl Payloads {
    /// Of so many bytes each, at least 20.
    ///
    /// # Errors
    /// None that is known.
    pub fn new(bytes: u32) -> Result<Payloads> {
        let mut random = fastrand::Rng::with_seed(7);
        let mut one = |n: usize| {
            let n = 10 + n % 90;
            let pad = (bytes as usize).saturating_sub(format!(r#"{{"n":{n},"pad":""}}"#).len());
            let letters: String = (0..pad).map(|_| char::from(LETTERS[random.usize(..LETTERS.len())])).collect();
            Ok(RawJson::parse(format!(r#"{{"n":{n},"pad":"{letters}"}}"#))?)
        };
        (0..DIFFERENT).map(&mut one).collect::<Result<_>>().map(Payloads)
    }

    /// The n-th; they come again and again.
    pub fn get(&self, n: usize) -> &RawJson {
        &self.0[n % self.0.len()]
    }

    /// So many, in turn.
    pub fn take(&self, jobs: usize) -> impl Iterator<Item = &RawJson> + Send {
        self.0.iter().cycle().take(jobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_have_the_size_that_was_asked_for() {
        for bytes in [20, 60, 1024, 65_536] {
            let payloads = Payloads::new(bytes).unwrap();
            assert!(payloads.take(2 * DIFFERENT).all(|payload| payload.get().len() == bytes as usize), "{bytes}");
            assert_ne!(payloads.get(0).get(), payloads.get(1).get());
        }
    }
}
