//! Sessions beside the library's client, for commands that look at tables themselves. They speak without TLS.

use std::env;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tokio_postgres::{Client, Config, Error, NoTls};

/// A server that does not answer for so long counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Reads the URL; what it leaves open comes from the environment, as in all commands.
///
/// # Errors
/// It cannot be read.
pub fn config(database_url: &str, application_name: &str) -> Result<Config> {
    let mut config: Config = database_url.parse().context("the database URL cannot be read")?;
    complete(&mut config, |name| env::var(name).ok().filter(|value| !value.is_empty()))?;
    config.application_name(application_name);
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_TIMEOUT);
    }
    Ok(config)
}

/// Connects. Dropping the client closes the session.
///
/// # Errors
/// The server cannot be reached or refuses.
pub async fn connect(config: &Config) -> Result<Client, Error> {
    let (client, connection) = config.connect(NoTls).await?;
    let name = config.get_application_name().unwrap_or_default().to_owned();
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, name, "a session ended");
        }
    });
    Ok(client)
}

/// What the URL leaves open comes from the environment.
fn complete(config: &mut Config, environment: impl Fn(&str) -> Option<String>) -> Result<()> {
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        config.host(environment("PGHOST").unwrap_or_else(default_host));
    }
    if let (true, Some(port)) = (config.get_ports().is_empty(), environment("PGPORT")) {
        config.port(port.parse().with_context(|| format!("PGPORT={port:?} is not a port"))?);
    }
    if let (None, Some(user)) = (config.get_user(), environment("PGUSER")) {
        config.user(user);
    }
    if let (None, Some(password)) = (config.get_password(), environment("PGPASSWORD")) {
        config.password(password);
    }
    if let (None, Some(name)) = (config.get_dbname(), environment("PGDATABASE")) {
        config.dbname(name);
    }
    Ok(())
}

fn default_host() -> String {
    let sockets = "/var/run/postgresql";
    if Path::new(sockets).is_dir() { sockets.to_owned() } else { "localhost".to_owned() }
}

#[cfg(test)]
mod tests {
    use tokio_postgres::config::Host;

    use super::*;

    #[test]
    fn the_environment_fills_what_the_url_leaves_open() {
        let environment = |name: &str| {
            let value = match name {
                "PGHOST" => "db.internal",
                "PGPORT" => "6432",
                "PGUSER" => "app",
                "PGDATABASE" => "shop",
                _ => return None,
            };
            Some(value.to_owned())
        };
        let mut config: Config = "user=me".parse().unwrap();
        complete(&mut config, environment).unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("db.internal".into())]);
        assert_eq!((config.get_ports(), config.get_user()), ([6432].as_slice(), Some("me")));
        assert_eq!(config.get_dbname(), Some("shop"));
    }
}
