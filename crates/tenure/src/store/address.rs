//! Where the database is: a connection string, completed from the environment as libpq does it.

use std::path::Path;

use tokio_postgres::Config;
use tokio_postgres::config::{Host, SslMode, TargetSessionAttrs};

use super::failure::StoreError;

/// Reads a connection string of either form (`postgres://…` or `host=… dbname=…`); what it leaves open comes from
/// PGHOST, PGPORT, PGUSER, PGPASSWORD, PGDATABASE and PGSSLMODE. Of several hosts the first that takes writes is the one.
/// The second value: check the server's certificate.
pub(crate) fn read(text: &str) -> Result<(Config, bool), StoreError> {
    read_with(text, |name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

fn read_with(text: &str, environment: impl Fn(&str) -> Option<String>) -> Result<(Config, bool), StoreError> {
    let from_environment = || environment("PGSSLMODE").filter(|_| !text.contains("sslmode="));
    let verify = ["verify-full", "verify-ca"]
        .iter()
        .any(|mode| text.contains(&format!("sslmode={mode}")) || from_environment().as_deref() == Some(*mode));
    let mut config: Config = plain_modes(text).parse()?;
    config.target_session_attrs(TargetSessionAttrs::ReadWrite);
    if let Some(mode) = from_environment() {
        config.ssl_mode(ssl_mode(&mode)?);
    }
    if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
        for host in environment("PGHOST").unwrap_or_else(default_host).split(',') {
            config.host(host);
        }
    }
    if let (true, Some(port)) = (config.get_ports().is_empty(), environment("PGPORT")) {
        for port in port.split(',') {
            config.port(port.parse().map_err(|_| StoreError::Protocol(format!("PGPORT={port:?} is not a port")))?);
        }
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
    Ok((config, verify))
}

/// The modes that tokio-postgres knows, for those that it does not.
fn plain_modes(text: &str) -> String {
    text.replace("sslmode=verify-full", "sslmode=require")
        .replace("sslmode=verify-ca", "sslmode=require")
        .replace("sslmode=allow", "sslmode=prefer")
}

fn ssl_mode(name: &str) -> Result<SslMode, StoreError> {
    match name {
        "disable" => Ok(SslMode::Disable),
        "allow" | "prefer" => Ok(SslMode::Prefer),
        "require" | "verify-ca" | "verify-full" => Ok(SslMode::Require),
        _ => Err(StoreError::Protocol(format!(
            "PGSSLMODE={name:?} is unknown: use disable, prefer, require or verify-full"
        ))),
    }
}

/// The socket of a local server when its usual folder exists, as libpq on Debian; otherwise TCP.
fn default_host() -> String {
    const SOCKETS: &str = "/var/run/postgresql";
    if Path::new(SOCKETS).is_dir() { SOCKETS.to_owned() } else { "localhost".to_owned() }
}

/// The address for messages: `user@host:port/database`, or `user@host:port,host:port/database`; never the password.
pub(crate) fn shown(config: &Config) -> String {
    let (hosts, addresses, ports) = (config.get_hosts(), config.get_hostaddrs(), config.get_ports());
    let one = |n: usize| {
        let host = match hosts.get(n) {
            Some(Host::Tcp(name)) => name.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            None => addresses.get(n).map(ToString::to_string).unwrap_or_default(),
        };
        format!("{host}:{}", ports.get(n).or(ports.first()).copied().unwrap_or(5432))
    };
    let all: Vec<String> = (0..hosts.len().max(addresses.len()).max(1)).map(one).collect();
    let user = config.get_user().map(|user| format!("{user}@")).unwrap_or_default();
    let name = config.get_dbname().map(|name| format!("/{name}")).unwrap_or_default();
    format!("{user}{}{name}", all.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(name: &str) -> Option<String> {
        let value = match name {
            "PGHOST" => "db.internal",
            "PGPORT" => "6432",
            "PGUSER" => "app",
            "PGPASSWORD" => "secret",
            "PGDATABASE" => "shop",
            "PGSSLMODE" => "verify-full",
            _ => return None,
        };
        Some(value.to_owned())
    }

    #[test]
    fn the_environment_fills_what_the_string_leaves_open() {
        let check = |text: &str, expected: &str| {
            assert_eq!(shown(&read_with(text, environment).unwrap().0), expected, "{text}");
        };
        check("", "app@db.internal:6432/shop");
        check("postgres://me@other:1234/x", "me@other:1234/x");
        check("postgres://other", "app@other:5432/shop"); // a URL that names a host means its usual port
        check("host=/tmp dbname=x", "app@/tmp:6432/x");
        check("postgres://me@a:1,b:2/x", "me@a:1,b:2/x");
    }

    #[test]
    fn the_environment_may_name_several_hosts() {
        let several = |name: &str| match name {
            "PGHOST" => Some("a,b".to_owned()),
            "PGPORT" => Some("1,2".to_owned()),
            _ => None,
        };
        assert_eq!(shown(&read_with("dbname=x", several).unwrap().0), "a:1,b:2/x");
    }

    #[test]
    fn every_sslmode_has_a_meaning() {
        let check = |text: &str, mode: SslMode, verify: bool| {
            let (config, verifies) = read_with(text, |_| None).unwrap();
            assert_eq!((config.get_ssl_mode(), verifies), (mode, verify), "{text}");
        };
        check("postgres://h/d", SslMode::Prefer, false);
        check("postgres://h/d?sslmode=allow", SslMode::Prefer, false);
        check("postgres://h/d?sslmode=disable", SslMode::Disable, false);
        check("postgres://h/d?sslmode=require", SslMode::Require, false);
        check("host=h sslmode=verify-full", SslMode::Require, true);
        let (config, verifies) = read_with("host=h", environment).unwrap();
        assert_eq!((config.get_ssl_mode(), verifies), (SslMode::Require, true));
        assert!(!read_with("host=h sslmode=disable", environment).unwrap().1);
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in ["postgres://h:port/d", "host=h port=x", "postgres://h/d?colour=red", "sslmode=maybe host=h"] {
            assert!(read_with(bad, |_| None).is_err(), "{bad}");
        }
        assert!(read_with("", |name| (name == "PGPORT").then(|| "x".to_owned())).is_err());
    }
}
