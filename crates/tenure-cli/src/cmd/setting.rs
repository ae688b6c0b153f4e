//! `tenure setting`: the numbers that hold for the whole schema.

use clap::Subcommand;
use serde_json::{Value, json};
use tenure::Client;

use crate::connection::Connection;
use crate::exit::{Failure, Outcome};
use crate::{number, output};

/// Look at what holds for the whole schema, and set it
#[derive(Debug, Subcommand)]
pub enum Setting {
    List(List),
    Set(Set),
    Unset(Unset),
}

/// List the settings: what holds, the default, the range
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  tenure setting list
  tenure setting list --json | jq '.[] | select(.set)'")]
pub struct List {
    /// Print a JSON array
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Set a number for all programs on this schema
#[derive(Debug, clap::Args)]
#[command(after_help = "\
It holds from the next call on. How long jobs are kept is set by `tenure queue set`.

Examples:
  tenure setting set payload_bytes 1048576        payloads of up to 1 MiB
  tenure setting set snapshot_warn_ms 600000      warn of snapshots from ten minutes on")]
pub struct Set {
    /// Its name, from `tenure setting list`
    name: String,

    /// The number, in the unit that the name ends with
    #[arg(value_parser = number::of::<i64>("`tenure setting list` shows the range"), allow_negative_numbers = true)]
    value: i64,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Set a number back to its default
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  tenure setting unset payload_bytes")]
pub struct Unset {
    /// Its name, from `tenure setting list`
    name: String,

    /// Print a JSON object
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    connection: Connection,
}

/// Runs the verb.
pub async fn run(verb: Setting) -> Outcome {
    match verb {
        Setting::List(args) => list(args).await,
        Setting::Set(args) => set(&args.connection, &args.name, Some(args.value), args.json).await,
        Setting::Unset(args) => set(&args.connection, &args.name, None, args.json).await,
    }
}

async fn list(args: List) -> Outcome {
    let settings = args.connection.connect().await?.settings().await?;
    match args.json {
        true => output::json(&settings.iter().map(to_json).collect::<Vec<_>>())?,
        false => output::table(&["SETTING", "VALUE", "DEFAULT", "RANGE"], settings.iter().map(row).collect(), "")?,
    }
    Ok(0)
}

async fn set(connection: &Connection, name: &str, value: Option<i64>, json: bool) -> Outcome {
    let client = connection.connect().await?;
    client.set_setting(name, value).await?;
    let setting = named(&client, name).await?;
    match (json, setting.is_set) {
        (true, _) => output::json(&to_json(&setting))?,
        (false, true) => output::line(&format!("{name} is {}", setting.value))?,
        (false, false) => output::line(&format!("{name} is {}, the default", setting.value))?,
    }
    Ok(0)
}

async fn named(client: &Client, name: &str) -> Result<tenure::Setting, Failure> {
    let found = client.settings().await?.into_iter().find(|setting| setting.name == name);
    found.ok_or_else(|| Failure::NotFound(format!("{name:?} is no setting any more")))
}

fn row(setting: &tenure::Setting) -> Vec<String> {
    let range = format!("{} to {}", setting.lowest, setting.highest);
    vec![setting.name.clone(), setting.value.to_string(), setting.default_value.to_string(), range]
}

fn to_json(setting: &tenure::Setting) -> Value {
    json!({
        "name": setting.name,
        "value": setting.value,
        "default": setting.default_value,
        "lowest": setting.lowest,
        "highest": setting.highest,
        "set": setting.is_set,
    })
}
