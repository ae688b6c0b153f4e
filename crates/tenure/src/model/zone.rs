//! Time zones: what a wall clock shows, and the instants at which it shows it.
//!
//! Everything here is in whole seconds: an *instant* counts them since 1970 in UTC, a *wall time* is what a clock in the
//! zone shows, counted as if that clock were in UTC. A zone's line of instants falls into *stretches* of one offset; where
//! two of them meet, wall times are left out (a gap) or shown twice.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::{Offset, TimeZone};

use crate::Error;

/// A time zone of the IANA database.
#[derive(Clone, Debug)]
pub(crate) struct Zone {
    name: String,
    zone: TimeZone,
}

/// What lies between two changes of a zone's offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stretch {
    /// Its first instant; none: since ever.
    pub(crate) start: Option<i64>,
    /// The first instant behind it; none: for ever.
    pub(crate) end: Option<i64>,
    /// Wall time less instant.
    pub(crate) offset: i64,
    /// The offset before its start.
    pub(crate) before: i64,
    /// The offset behind its end.
    pub(crate) after: i64,
}

impl Zone {
    /// The zone of that name: `Europe/Berlin`, `UTC`.
    ///
    /// # Errors
    /// `BadInput`, naming the value.
    pub(crate) fn named(name: &str) -> Result<Zone, Error> {
        // An offset has no rules and no gaps, and is no zone of the database.
        let known = name.starts_with(|c: char| c.is_ascii_alphabetic()).then(|| TimeZone::get(name).ok()).flatten();
        let zone = known.ok_or_else(|| unknown(name))?;
        let name = zone.iana_name().unwrap_or(name).to_owned();
        Ok(Zone { name, zone })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn offset_at(&self, instant: i64) -> i64 {
        self.zone.to_offset(timestamp(instant)).seconds().into()
    }

    /// The stretch in which an instant lies.
    pub(crate) fn stretch(&self, instant: i64) -> Stretch {
        let offset = self.offset_at(instant);
        // Strictly before the next second: at the latest at this one.
        let start = self.zone.preceding(timestamp(instant + 1)).next().map(|change| change.timestamp().as_second());
        let end = self.zone.following(timestamp(instant)).next().map(|change| change.timestamp().as_second());
        let start = start.filter(|start| *start <= instant);
        Stretch {
            start,
            end,
            offset,
            before: start.map_or(offset, |start| self.offset_at(start - 1)),
            after: end.map_or(offset, |end| self.offset_at(end)),
        }
    }

    /// The instants at which the wall clock shows this, earliest first: one, two, or none in a gap.
    pub(crate) fn instants_of(&self, wall: i64) -> Vec<i64> {
        // No offset is larger than a day and two hours.
        const REACH: i64 = 30 * 3600;
        let mut found = Vec::new();
        let mut stretch = self.stretch(wall - REACH);
        loop {
            let instant = wall - stretch.offset;
            if stretch.start.is_none_or(|start| instant >= start) && stretch.end.is_none_or(|end| instant < end) {
                found.push(instant);
            }
            match stretch.end {
                Some(end) if end <= wall + REACH => stretch = self.stretch(end),
                Some(_) | None => return found,
            }
        }
    }

    /// The first instant behind the gap in which this wall time lies.
    pub(crate) fn end_of_gap(&self, wall: i64) -> i64 {
        const REACH: i64 = 30 * 3600;
        let mut stretch = self.stretch(wall - REACH);
        while let Some(end) = stretch.end {
            if wall < end + stretch.after {
                return end;
            }
            stretch = self.stretch(end);
        }
        wall - stretch.offset
    }
}

/// The date and time that a wall clock shows.
pub(crate) fn civil(wall: i64) -> DateTime {
    Offset::UTC.to_datetime(timestamp(wall))
}

/// The inverse of [`civil`], without the fraction of the second.
pub(crate) fn wall(civil: DateTime) -> i64 {
    let zoned = Offset::UTC.to_timestamp(civil);
    zoned.map_or(i64::MAX / 4, |at| at.as_nanosecond().div_euclid(1_000_000_000) as i64)
}

/// Instants out of range are at its edge: no schedule reaches there.
pub(crate) fn timestamp(instant: i64) -> Timestamp {
    let (min, max) = (Timestamp::MIN.as_second() + 1, Timestamp::MAX.as_second() - 1);
    Timestamp::from_second(instant.clamp(min, max)).unwrap_or(Timestamp::UNIX_EPOCH)
}

fn unknown(name: &str) -> Error {
    let shown: String = name.chars().take(40).collect();
    Error::bad_input(
        format!("{shown:?} is not a time zone"),
        "write a name of the IANA database, for example Europe/Berlin, America/New_York or UTC",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    fn shown(text: &str) -> i64 {
        wall(text.parse().unwrap())
    }

    #[test]
    fn a_wall_clock_shows_a_time_once_twice_or_never() {
        let check = |zone: &str, time: &str, expected: &[&str]| {
            let found = Zone::named(zone).unwrap().instants_of(shown(time));
            assert_eq!(found, expected.iter().map(|text| at(text)).collect::<Vec<_>>(), "{zone} {time}");
        };
        check("UTC", "2026-05-01T12:00", &["2026-05-01T12:00:00Z"]);
        check("Europe/Berlin", "2026-03-29T02:30", &[]);
        check("Europe/Berlin", "2026-10-25T02:30", &["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"]);
        check("Europe/Berlin", "2026-10-25T03:00", &["2026-10-25T02:00:00Z"]);
        // Half an hour.
        check("Australia/Lord_Howe", "2026-10-04T02:15", &[]);
        check("Australia/Lord_Howe", "2026-04-05T01:45", &["2026-04-04T14:45:00Z", "2026-04-04T15:15:00Z"]);
        // A day that was left out.
        check("Pacific/Apia", "2011-12-30T12:00", &[]);
        check("Pacific/Apia", "2011-12-31T00:00", &["2011-12-30T10:00:00Z"]);
    }

    #[test]
    fn a_gap_ends_where_the_clock_goes_on() {
        let check = |zone: &str, time: &str, expected: &str| {
            assert_eq!(Zone::named(zone).unwrap().end_of_gap(shown(time)), at(expected), "{zone} {time}");
        };
        check("Europe/Berlin", "2026-03-29T02:30", "2026-03-29T01:00:00Z");
        check("Africa/Cairo", "2026-04-24T00:15", "2026-04-23T22:00:00Z");
        check("Pacific/Apia", "2011-12-30T12:00", "2011-12-30T10:00:00Z");
    }

    #[test]
    fn what_is_no_zone_is_named() {
        for bad in ["Europe/Berln", "", "+02:00", "Mars/Olympus", "../../etc/passwd"] {
            let error = Zone::named(bad).unwrap_err().to_string();
            assert!(error.contains("is not a time zone") && error.contains("Europe/Berlin"), "{bad}: {error}");
        }
        assert_eq!(Zone::named("europe/berlin").unwrap().name(), "Europe/Berlin");
    }
}
