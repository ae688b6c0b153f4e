//! One program for all products that have a Rust library: `peers PRODUCT setup`, `peers PRODUCT enqueue N …`,
//! `peers PRODUCT work N …`, `peers PRODUCT latency N`. `run.py` starts it; `contract.rs` says what each call does.
//!
//! DATABASE_URL names the database; a product's settings are variables that begin with PEER_.

mod call;
mod contract;
mod drivers;
mod meter;
mod recorded;

use anyhow::{Result, bail};

use call::Call;
use drivers::{apalis::Apalis, awa::Awa, graphile_worker::GraphileWorker, pgmq::Pgmq, tenure::Tenure};

#[tokio::main]
async fn main() -> Result<()> {
    let call = Call::read()?;
    let answer = match call.product.as_str() {
        "tenure" => contract::run::<Tenure>(&call).await,
        "graphile_worker" => contract::run::<GraphileWorker>(&call).await,
        "apalis" => contract::run::<Apalis>(&call).await,
        "pgmq" => contract::run::<Pgmq>(&call).await,
        "awa" => contract::run::<Awa>(&call).await,
        other => bail!("{other:?} is no product of this program"),
    }?;
    println!("{answer}");
    // Some products keep tasks that never end.
    std::process::exit(0);
}
