//! Durations and instants as they are typed.

use std::time::{Duration, SystemTime};

use tenure::{Error, duration as durations, instant as instants};

/// `500ms`, `5s`, `10m`, `2h`, `1d`, or several of them: `1h30m`. A bare number is not accepted, but `0` is.
pub fn duration(text: &str) -> Result<Duration, String> {
    durations::read(text).map_err(one_line)
}

/// An instant with `Z`, an offset or a zone. Which one is meant where a clock leaves it out or shows it twice is said on stderr.
pub fn instant(text: &str) -> Result<SystemTime, String> {
    instant_in(text, None).map_err(one_line)
}

/// The same, in this zone when the text names none.
pub fn instant_in(text: &str, zone: Option<&str>) -> Result<SystemTime, Error> {
    let meant = instants::read(text, zone)?;
    if let Some(note) = meant.note {
        eprintln!("{note}");
    }
    Ok(meant.at)
}

fn one_line(error: Error) -> String {
    match error.help() {
        Some(help) => format!("{}: {help}", error.message()),
        None => error.message().to_owned(),
    }
}

/// The zone of what is typed.
#[derive(Debug, Clone, clap::Args)]
pub struct ZoneOfInput {
    /// Time zone of instants that name none: Europe/Berlin, UTC
    #[arg(long, value_name = "ZONE", env = "TENURE_ZONE", hide_env_values = true)]
    pub zone: Option<String>,
}

impl ZoneOfInput {
    /// Reads an instant that was typed.
    pub fn read(&self, text: &str) -> Result<SystemTime, Error> {
        let error = |error: Error| match error.message().ends_with("has no time zone") {
            true => Error::bad_input(
                error.message().to_owned(),
                "add Z for UTC, an offset such as +01:00, or a zone such as [Europe/Berlin]; or give --zone",
            ),
            false => error,
        };
        instant_in(text, self.zone.as_deref()).map_err(error)
    }
}

/// The zone of a rule that is typed. One that the environment names is for rules that name none, and changes no schedule that has one.
#[derive(Debug, Clone, clap::Args)]
pub struct ZoneOfRule {
    /// Time zone of the rule, and of instants that name none: Europe/Berlin, UTC [env: TENURE_ZONE]
    #[arg(long, value_name = "ZONE")]
    pub zone: Option<String>,
}

/// What the environment names for whatever names no zone itself.
pub fn zone_of_environment() -> Option<String> {
    std::env::var("TENURE_ZONE").ok().filter(|zone| !zone.is_empty())
}

/// The zone of what is shown: it changes no instant.
#[derive(Debug, Clone, clap::Args)]
pub struct ShownZone {
    /// Show instants in this time zone; JSON is always in UTC
    #[arg(long, value_name = "ZONE", env = "TENURE_SHOW_ZONE", hide_env_values = true)]
    pub show_zone: Option<String>,
}

impl ShownZone {
    /// An instant for people, in UTC when no zone is given.
    pub fn instant(&self, at: SystemTime) -> Result<String, Error> {
        self.or("UTC", at)
    }

    /// The same, or in that zone when none is given.
    pub fn or(&self, zone: &str, at: SystemTime) -> Result<String, Error> {
        instants::show(at, self.show_zone.as_deref().unwrap_or(zone))
    }

    /// An instant, or nothing.
    pub fn instant_or_empty(&self, at: Option<SystemTime>) -> Result<String, Error> {
        at.map_or(Ok(String::new()), |at| self.instant(at))
    }
}

/// An instant in this zone when it names none, empty for none; or a duration that lies that far back: `7d` means seven days ago.
pub fn past(text: &str, zone: &str, now: SystemTime) -> Result<SystemTime, Error> {
    if let Ok(ago) = durations::read(text) {
        return Ok(now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH));
    }
    ZoneOfInput { zone: Some(zone.to_owned()).filter(|zone| !zone.is_empty()) }.read(text)
}

/// A point in the past as it is typed. How long ago is counted by the database's clock, not by this machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    At(SystemTime),
    Ago(Duration),
}

/// An instant, or a duration that lies that far back: `2h` means two hours ago.
pub fn instant_or_ago(text: &str) -> Result<When, String> {
    match duration(text) {
        Ok(ago) => Ok(When::Ago(ago)),
        Err(_) => instant(text).map(When::At).map_err(|error| format!("{error}; or how long ago: 2h, 7d")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instants_are_read() {
        let at = |seconds| Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(instant("1970-01-02T00:00:00Z"), at(86_400));
        assert_eq!(instant("1970-01-02T01:00:00+01:00"), at(86_400));
        assert_eq!(instant("1970-01-02T01:00[Europe/Berlin]"), at(86_400));
        assert!(instant("2026-12-24T18:00:00").unwrap_err().contains("has no time zone"));
        assert!(instant("tomorrow").unwrap_err().contains("is not an instant"));
        assert_eq!(instant_or_ago("2h"), Ok(When::Ago(Duration::from_secs(7_200))));
        assert_eq!(instant_or_ago("1970-01-01T00:00:00Z"), Ok(When::At(SystemTime::UNIX_EPOCH)));
        assert!(instant_or_ago("x").unwrap_err().contains("or how long ago"));
    }
}
