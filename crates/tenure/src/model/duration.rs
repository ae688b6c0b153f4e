//! Durations as people write them.

use std::time::Duration;

use crate::Error;

/// Reads `500ms`, `5s`, `10m`, `2h`, `1d`, or several of them: `1h30m`. A bare number is not accepted, but `0` is.
///
/// # Errors
/// `BadInput`, naming the text.
pub fn read(text: &str) -> Result<Duration, Error> {
    let wrong = || {
        let shown: String = text.chars().take(40).collect();
        Error::bad_input(format!("{shown:?} is not a duration"), "write 500ms, 5s, 10m, 2h, 1d or 1h30m, not negative")
    };
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

/// A duration as it is typed, in its largest whole unit: `500ms`, `90s`, `7d`.
pub fn show(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
    let whole = units.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit));
    whole.map_or_else(|| format!("{ms}ms"), |(unit, name)| format!("{}{name}", ms / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read() {
        let check = |text: &str, ms: u64| assert_eq!(read(text).unwrap(), Duration::from_millis(ms), "{text}");
        check("500ms", 500);
        check("5s", 5_000);
        check("10m", 600_000);
        check("1h30m", 5_400_000);
        check("1d", 86_400_000);
        check("0", 0);
    }

    #[test]
    fn durations_are_shown_as_they_are_typed() {
        for text in ["500ms", "1500ms", "90s", "90m", "36h", "7d", "0ms"] {
            assert_eq!(show(read(text).unwrap()), text);
        }
        assert_eq!(show(Duration::from_secs(86_400)), "1d");
    }

    #[test]
    fn what_is_no_duration_is_named() {
        for bad in ["", "5", "-5s", "5 s", "s", "5S", "5w", "1h-3m", "99999999999999999999s", "999999999999999999d"] {
            assert!(read(bad).unwrap_err().to_string().starts_with(&format!("{bad:?} is not a duration")), "{bad}");
        }
    }
}
