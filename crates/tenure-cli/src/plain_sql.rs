//! Sessions beside the library's client, for commands that look at tables themselves. They speak without TLS.

use std::time::Duration;

use tokio_postgres::config::SslMode;
use tokio_postgres::{Client, Config, Error, NoTls};

/// A server that does not answer for so long counts as unreachable.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The database that the library's client finds by this URL, for sessions of this name.
///
/// # Errors
/// It cannot be read, or asks for TLS.
pub fn config(database_url: &str, application_name: &str) -> Result<Config, tenure::Error> {
    let mut config = tenure::connection_config(database_url)?;
    if config.get_ssl_mode() == SslMode::Require {
        return Err(tenure::Error::bad_input(
            "this command cannot encrypt its connections, and sslmode or PGSSLMODE asks for that",
            "give sslmode=prefer where that is safe, as on the same machine",
        ));
    }
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

#[cfg(test)]
mod tests {
    use tokio_postgres::config::{Host, TargetSessionAttrs};

    use super::*;

    #[test]
    fn an_address_means_what_it_means_to_the_library() {
        let config = config("postgres://me@a:1,b:2/x?sslmode=allow", "here").unwrap();
        assert_eq!(config.get_hosts(), [Host::Tcp("a".into()), Host::Tcp("b".into())]);
        assert_eq!((config.get_ports(), config.get_ssl_mode()), ([1, 2].as_slice(), SslMode::Prefer));
        assert_eq!(config.get_target_session_attrs(), TargetSessionAttrs::ReadWrite, "of several hosts the primary");
    }

    #[test]
    fn a_connection_that_has_to_be_encrypted_is_not_made_without() {
        for mode in ["require", "verify-ca", "verify-full"] {
            let error = config(&format!("postgres://me@a/x?sslmode={mode}"), "here").unwrap_err();
            assert!(error.to_string().contains("cannot encrypt") && error.help().is_some(), "{error}");
        }
    }
}
