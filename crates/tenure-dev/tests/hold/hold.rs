//! Starts a server as its arguments say (`ephemeral`, or the folder of a kept cluster), prints its folder, process id
//! and URL, holds it until stdin ends, and stops it.

use std::io::Read;

use tenure_dev::{Options, Server};

fn main() -> anyhow::Result<()> {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let ephemeral = wanted == "ephemeral";
    let data_dir = (!ephemeral).then(|| wanted.into());
    let server = Server::start(Options { data_dir, ephemeral, ..Options::default() })?;
    println!("{}\n{}\n{}", server.home().display(), server.pid(), server.url());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop()
}
