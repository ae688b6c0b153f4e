//! One product a file.

pub(crate) mod apalis;
pub(crate) mod awa;
pub(crate) mod graphile_worker;
pub(crate) mod pgmq;
pub(crate) mod tenure;

use serde::{Deserialize, Serialize};

/// The queue of the products that want one named.
const QUEUE: &str = "bench";

/// The payload of all products.
#[derive(Clone, Serialize, Deserialize)]
struct Noop {
    i: u64,
}
