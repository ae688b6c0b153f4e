//! Instants as people write them: with an offset, or with a time zone whose rules say what a wall clock means.
//!
//! ```
//! # fn main() -> Result<(), tenure::Error> {
//! use tenure::instant;
//!
//! let meant = instant::read("2027-10-31T02:30[Europe/Berlin]", None)?;
//! assert_eq!(instant::show(meant.at, "UTC")?, "2027-10-31T00:30:00.000Z");
//! assert!(meant.note.unwrap().contains("twice"));
//! # Ok(()) }
//! ```

use std::time::SystemTime;

use jiff::Timestamp;
use jiff::fmt::temporal::{Pieces, TimeZoneAnnotationKind};
use jiff::tz::Offset;

use super::zone::{Zone, civil, wall};
use crate::Error;

/// The instant that was meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Meant {
    /// The instant.
    pub at: SystemTime,
    /// For people, when the clock does not show that time on that day, or shows it twice: which instant was taken.
    pub note: Option<String>,
}

/// Reads an instant: `2027-03-28T02:30:00Z`, `2027-03-28T02:30+01:00`, `2027-03-28T02:30[Europe/Berlin]`. `zone` is for
/// texts that name none; a text with neither is refused.
///
/// A time that the zone's clock leaves out is the first one that it shows again; one that it shows twice is the first of
/// the two, unless the offset is written as well (`2027-10-31T02:30+01:00[Europe/Berlin]`).
///
/// # Errors
/// `BadInput`: no instant, no zone, an unknown zone, an offset that the zone does not have then.
pub fn read(text: &str, zone: Option<&str>) -> Result<Meant, Error> {
    let pieces = Pieces::parse(text.trim()).map_err(|_| no_instant(text))?;
    let Some(time) = pieces.time() else {
        return Err(Error::bad_input(
            format!("{text:?} is a date without a time"),
            format!("write {}T00:00 and a time zone", pieces.date()),
        ));
    };
    let shown = pieces.date().to_datetime(time);
    let offset = pieces.to_numeric_offset();
    let named = match pieces.time_zone_annotation().map(|annotation| annotation.kind()) {
        Some(TimeZoneAnnotationKind::Named(name)) => Some(name.as_str().to_owned()),
        // `[+02:00]` says no more than `+02:00`.
        Some(TimeZoneAnnotationKind::Offset(fixed)) if offset.is_none_or(|offset| offset == *fixed) => {
            return exact(shown, *fixed);
        }
        // An offset that contradicts the one before it, or what a later version of jiff may read.
        Some(_) => return Err(no_instant(text)),
        None => None,
    };
    match (offset, named) {
        (Some(offset), None) => exact(shown, offset),
        (Some(offset), Some(name)) => in_zone_with_offset(text, shown, offset, &Zone::named(&name)?),
        (None, Some(name)) => in_zone(shown, &Zone::named(&name)?),
        (None, None) => match zone {
            Some(name) => in_zone(shown, &Zone::named(name)?),
            None => Err(Error::bad_input(
                format!("{text:?} has no time zone"),
                "add Z for UTC, an offset such as +01:00, or a zone such as [Europe/Berlin]",
            )),
        },
    }
}

/// An instant as a clock of that zone shows it, with its offset, to the millisecond: `2027-03-28T03:00:00.000+02:00[Europe/Berlin]`;
/// for UTC `2027-03-28T01:00:00.000Z`.
///
/// # Errors
/// `BadInput`: an unknown zone, or an instant beyond the year 9999.
pub fn show(at: SystemTime, zone: &str) -> Result<String, Error> {
    let zone = Zone::named(zone)?;
    let instant = Timestamp::try_from(at)
        .map_err(|_| Error::bad_input("the instant is out of range", "write one before the year 10000"))?;
    if zone.name() == "UTC" {
        return Ok(format!("{instant:.3}"));
    }
    let offset = Offset::from_seconds(zone.offset_at(instant.as_second()) as i32).unwrap_or(Offset::UTC);
    Ok(format!("{:.3}{}[{}]", offset.to_datetime(instant), clock_offset(offset.seconds().into()), zone.name()))
}

/// `+02:00`; the seconds only where there are some.
fn clock_offset(seconds: i64) -> String {
    let sign = if seconds < 0 { '-' } else { '+' };
    let (hours, minutes, rest) = (seconds.abs() / 3600, seconds.abs() / 60 % 60, seconds.abs() % 60);
    match rest {
        0 => format!("{sign}{hours:02}:{minutes:02}"),
        rest => format!("{sign}{hours:02}:{minutes:02}:{rest:02}"),
    }
}

fn exact(shown: jiff::civil::DateTime, offset: Offset) -> Result<Meant, Error> {
    let at = offset
        .to_timestamp(shown)
        .map_err(|_| Error::bad_input(format!("{shown} is out of range"), "write an instant before the year 10000"))?;
    Ok(Meant { at: at.into(), note: None })
}

fn in_zone_with_offset(text: &str, shown: jiff::civil::DateTime, offset: Offset, zone: &Zone) -> Result<Meant, Error> {
    let meant = exact(shown, offset)?;
    let fits = zone.instants_of(wall(shown)).contains(&(wall(shown) - i64::from(offset.seconds())));
    if fits {
        return Ok(meant);
    }
    let had = clock_offset(zone.offset_at(wall(shown) - i64::from(offset.seconds())));
    Err(Error::bad_input(
        format!("{text:?}: no clock in {} shows {shown} at {}", zone.name(), clock_offset(offset.seconds().into())),
        format!("its offset is {had} then; leave the offset or the zone out"),
    ))
}

fn in_zone(shown: jiff::civil::DateTime, zone: &Zone) -> Result<Meant, Error> {
    let instants = zone.instants_of(wall(shown));
    let name = zone.name();
    let (instant, note) = match instants[..] {
        [one] => (one, None),
        [first, .., last] => {
            let [first_offset, last_offset] = [first, last].map(|at| clock_offset(zone.offset_at(at)));
            let note = format!(
                "{shown} comes twice in {name}: the first is meant, at {first_offset}; the other is {shown}{last_offset}[{name}]"
            );
            (first, Some(note))
        }
        [] => {
            let end = zone.end_of_gap(wall(shown));
            let goes_on = civil(end + zone.offset_at(end));
            (end, Some(format!("{shown} does not exist in {name}: the next time that does is meant, {goes_on}")))
        }
    };
    // Of what a gap leaves out nothing is kept, also no fraction.
    let fraction = if instants.is_empty() { 0 } else { shown.subsec_nanosecond() };
    let at = Timestamp::new(instant, fraction)
        .map_err(|_| Error::bad_input(format!("{shown} is out of range"), "write an instant before the year 10000"))?;
    Ok(Meant { at: at.into(), note })
}

fn no_instant(text: &str) -> Error {
    let shown: String = text.chars().take(60).collect();
    Error::bad_input(
        format!("{shown:?} is not an instant"),
        "write 2026-12-24T18:00:00Z, 2026-12-24T19:00+01:00 or 2026-12-24T19:00[Europe/Berlin] (RFC 3339 and 9557)",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instant_is_read_with_its_offset_or_zone() {
        let check = |text: &str, zone: Option<&str>, expected: &str, note: Option<&str>| {
            let meant = read(text, zone).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!(show(meant.at, "UTC").unwrap(), expected, "{text}");
            match (meant.note, note) {
                (None, None) => {}
                (Some(found), Some(part)) => assert!(found.contains(part), "{text}: {found}"),
                (found, part) => panic!("{text}: {found:?}, not {part:?}"),
            }
        };
        check("2026-12-24T18:00:00Z", None, "2026-12-24T18:00:00.000Z", None);
        check("2026-12-24T18:00:00.25Z", Some("Asia/Tokyo"), "2026-12-24T18:00:00.250Z", None);
        check("2026-12-24T19:00+01:00", None, "2026-12-24T18:00:00.000Z", None);
        check("2026-12-24 19:00[Europe/Berlin]", None, "2026-12-24T18:00:00.000Z", None);
        check("2026-12-24T19:00", Some("Europe/Berlin"), "2026-12-24T18:00:00.000Z", None);
        check("2026-12-24T19:00[Europe/Berlin]", Some("Asia/Tokyo"), "2026-12-24T18:00:00.000Z", None);
        check("2026-12-24T19:00[+01:00]", None, "2026-12-24T18:00:00.000Z", None);
        check("2027-03-28T02:30[Europe/Berlin]", None, "2027-03-28T01:00:00.000Z", Some("does not exist"));
        check("2027-10-31T02:30[Europe/Berlin]", None, "2027-10-31T00:30:00.000Z", Some("comes twice"));
        check("2027-10-31T02:30+01:00[Europe/Berlin]", None, "2027-10-31T01:30:00.000Z", None);
        check("2027-10-31T02:30+02:00[Europe/Berlin]", None, "2027-10-31T00:30:00.000Z", None);
        // Africa/Cairo's clock goes on from midnight.
        check("2026-04-24T00:00[Africa/Cairo]", None, "2026-04-23T22:00:00.000Z", Some("2026-04-24T01:00"));
    }

    #[test]
    fn what_is_no_instant_or_has_no_zone_is_refused_with_the_way_out() {
        let check = |text: &str, parts: [&str; 2]| {
            let error = read(text, None).unwrap_err().to_string();
            parts.iter().for_each(|part| assert!(error.contains(part), "{text}: {error}"));
        };
        check("tomorrow", ["\"tomorrow\" is not an instant", "RFC 3339"]);
        check("", ["is not an instant", "2026-12-24T18:00:00Z"]);
        check("2026-12-24", ["a date without a time", "2026-12-24T00:00"]);
        check("2026-12-24T18:00:00", ["has no time zone", "[Europe/Berlin]"]);
        check("2026-12-24T19:00[Europe/Berln]", ["\"Europe/Berln\" is not a time zone", "Europe/Berlin"]);
        check("2026-12-24T19:00+05:00[Europe/Berlin]", ["no clock in Europe/Berlin", "its offset is +01:00"]);
        check("2027-03-28T02:30+01:00[Europe/Berlin]", ["no clock in Europe/Berlin", "+02:00"]);
        check("2026-13-24T19:00Z", ["is not an instant", "RFC 3339"]);
    }

    #[test]
    fn an_instant_is_shown_in_any_zone() {
        let at = read("2026-12-24T18:00:00.5Z", None).unwrap().at;
        let check = |zone: &str, expected: &str| assert_eq!(show(at, zone).unwrap(), expected);
        check("UTC", "2026-12-24T18:00:00.500Z");
        check("America/New_York", "2026-12-24T13:00:00.500-05:00[America/New_York]");
        check("Asia/Kathmandu", "2026-12-24T23:45:00.500+05:45[Asia/Kathmandu]");
        assert!(show(at, "Nowhere").is_err());
    }
}
