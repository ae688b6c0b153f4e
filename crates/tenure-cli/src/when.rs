//! Durations and instants as they are typed.

use std::time::{Duration, SystemTime};

/// `500ms`, `5s`, `10m`, `2h`, `1d`, or several of them: `1h30m`. A bare number is not accepted, but `0` is.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write 500ms, 5s, 10m, 2h, 1d or 1h30m, not negative");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let number: u64 = rest[..digits].parse().map_err(|_| wrong())?;
        let after = &rest[digits..];
        let letters = after.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(after.len());
        let unit_ms: u64 = match &after[..letters] {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return Err(wrong()),
        };
        let part = number.checked_mul(unit_ms).map(Duration::from_millis);
        total = part.and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
        rest = &after[letters..];
    }
    Ok(total)
}

/// An instant in RFC 3339, with `Z` or an offset.
pub fn instant(text: &str) -> Result<SystemTime, String> {
    let at: jiff::Timestamp = text.parse().map_err(|_| {
        format!("{text:?} is not an instant: write 2026-12-24T18:00:00Z or 2026-12-24T19:00:00+01:00 (RFC 3339)")
    })?;
    Ok(at.into())
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
    fn durations_are_read() {
        let check = |text: &str, ms: u64| assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        check("500ms", 500);
        check("5s", 5_000);
        check("10m", 600_000);
        check("1h30m", 5_400_000);
        check("1d", 86_400_000);
        check("0", 0);
    }

    #[test]
    fn what_is_no_duration_is_named() {
        for bad in ["", "5", "-5s", "5 s", "s", "5S", "5w", "1h-3m", "99999999999999999999s", "999999999999999999d"] {
            assert!(duration(bad).unwrap_err().starts_with(&format!("{bad:?} is not a duration")), "{bad}");
        }
    }

    #[test]
    fn instants_are_read() {
        let at = |seconds| Ok(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(instant("1970-01-02T00:00:00Z"), at(86_400));
        assert_eq!(instant("1970-01-02T01:00:00+01:00"), at(86_400));
        for bad in ["tomorrow", "2026-12-24", "2026-12-24T18:00:00", ""] {
            assert!(instant(bad).unwrap_err().contains("is not an instant"), "{bad}");
        }
        assert_eq!(instant_or_ago("2h"), Ok(When::Ago(Duration::from_secs(7_200))));
        assert_eq!(instant_or_ago("1970-01-01T00:00:00Z"), Ok(When::At(SystemTime::UNIX_EPOCH)));
        assert!(instant_or_ago("x").unwrap_err().contains("or how long ago"));
    }
}
