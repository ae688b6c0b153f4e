//! Ready judgements of common failures: what is worth another try, and when.

use std::time::{Duration, SystemTime};

use super::Fail;

/// Judges the status of an HTTP answer, with the text of its `Retry-After` header if it had one.
///
/// 2xx is fine. 408, 409, 423, 425, 429 and 5xx (but 501 and 505) are retried, when `Retry-After` says (seconds or a
/// date, RFC 9110 section 10.2.3), otherwise by the retry policy. Up to a quarter is added to what `Retry-After` says, so
/// that jobs that were refused together do not come back in the same second; never less. Everything else is permanent.
///
/// ```
/// use tenure::classify;
///
/// assert!(classify::http_status(200, None).is_ok());
/// let fail = classify::http_status(429, Some("120")).unwrap_err();
/// assert_eq!(fail.message(), "HTTP status 429");
/// ```
///
/// # Errors
/// The judgement of every status that is not 2xx.
#[track_caller]
pub fn http_status(status: u16, retry_after: Option<&str>) -> Result<(), Fail> {
    let text = format!("HTTP status {status}");
    let fail = match status {
        200..=299 => return Ok(()),
        501 | 505 => Fail::permanent(text),
        408 | 409 | 423 | 425 | 429 | 500..=599 => match retry_after.and_then(parse_retry_after) {
            Some(RetryAfter::Delay(delay)) => Fail::retry(text).after(delay).spread(),
            Some(RetryAfter::At(instant)) => Fail::retry(text).at(instant).spread(),
            None => Fail::retry(text),
        },
        _ => Fail::permanent(text),
    };
    Err(fail.detail("http_status", status))
}

/// Judges a SQLSTATE from a database that a handler works with.
///
/// Serialization failures and deadlocks (40001, 40P01) mean "run the transaction again": run again after a moment
/// without using an attempt. Lost connections, shutdowns, shortages, locks and timeouts are retried. Wrong data (class 22), broken
/// constraints (23), missing rights (42501, class 28) and wrong statements (42) are permanent. What is unknown is retried.
#[track_caller]
pub fn sqlstate(state: &str) -> Fail {
    let text = format!("database error, SQLSTATE {state}");
    let fail = match (state, state.get(..2).unwrap_or("")) {
        ("40001" | "40P01", _) => Fail::snooze(CONFLICT_PAUSE),
        ("TN002" | "TN004" | "TN005" | "TN006", _) => Fail::permanent(text),
        (_, "22" | "23" | "28" | "42" | "0A") => Fail::permanent(text),
        (_, _) => Fail::retry(text),
    };
    fail.detail("sqlstate", state)
}

/// Long enough for the other transaction to end, short enough not to be noticed.
const CONFLICT_PAUSE: Duration = Duration::from_millis(250);

/// Judges a serde_json error: text that is cut off or could not be read is retried, the rest never becomes right.
#[track_caller]
pub fn json(error: serde_json::Error) -> Fail {
    match error.classify() {
        serde_json::error::Category::Io | serde_json::error::Category::Eof => Fail::retry(error),
        serde_json::error::Category::Syntax | serde_json::error::Category::Data => Fail::permanent(error),
    }
}

#[derive(Debug, PartialEq)]
enum RetryAfter {
    Delay(Duration),
    At(SystemTime),
}

fn parse_retry_after(text: &str) -> Option<RetryAfter> {
    let text = text.trim();
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(RetryAfter::Delay(Duration::from_secs(text.parse().unwrap_or(u64::MAX))));
    }
    http_date(text).map(RetryAfter::At)
}

/// An HTTP date (RFC 9110 section 5.6.7): `Sun, 06 Nov 1994 08:49:37 GMT`, and the two obsolete forms.
fn http_date(text: &str) -> Option<SystemTime> {
    let words: Vec<&str> = text.split([' ', ',', '-']).filter(|word| !word.is_empty()).collect();
    let (day, month, year, time) = match words[..] {
        [_, day, month, year, time, "GMT"] => (day, month, year, time),
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let day: u64 = day.parse().ok().filter(|day| (1..=31).contains(day))?;
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let year = match (year.len(), year.parse::<u64>().ok()?) {
        (2, year) if year < 70 => 2000 + year,
        (2, year) => 1900 + year,
        (4, year) if year >= 1970 => year,
        (_, _) => return None,
    };
    let mut clock = time.splitn(3, ':').map(|part| part.parse::<u64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if hour > 23 || minute > 59 || second > 60 {
        return None;
    }
    let seconds = days_since_epoch(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second;
    Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds))
}

const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// Days from 1970-01-01 in the Gregorian calendar, by Howard Hinnant's `days_from_civil`, for years from 1970 on.
fn days_since_epoch(year: u64, month: u64, day: u64) -> u64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    era * 146_097 + day_of_era - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Verdict;

    #[test]
    fn an_http_status_is_judged() {
        let check = |status: u16, retry_after: Option<&str>, expected: Verdict| {
            assert_eq!(http_status(status, retry_after).unwrap_err().verdict(), expected, "{status}");
        };
        assert!(http_status(204, None).is_ok());
        check(400, None, Verdict::Permanent);
        check(404, Some("5"), Verdict::Permanent);
        check(302, None, Verdict::Permanent);
        check(501, None, Verdict::Permanent);
        check(500, None, Verdict::Retry);
        check(503, Some("7"), Verdict::RetryAfter(Duration::from_secs(7)));
        check(429, Some("nonsense"), Verdict::Retry);
        check(429, Some("99999999999999999999999"), Verdict::RetryAfter(Duration::from_secs(u64::MAX)));
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        check(429, Some("Sun, 06 Nov 1994 08:49:37 GMT"), Verdict::RetryAt(at));
    }

    #[test]
    fn the_three_forms_of_an_http_date_are_read() {
        let at = |seconds| Some(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        for text in ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(http_date(text), at(784_111_777), "{text}");
        }
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), at(0));
        assert_eq!(http_date("Tue, 29 Feb 2028 12:00:00 GMT"), at(1_835_438_400));
        for bad in [
            "",
            "Sun, 06 Nov 1994",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Wed, 00 Jan 2025 00:00:00 GMT",
        ] {
            assert_eq!(http_date(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_sqlstate_is_judged() {
        let check = |state: &str, expected: Verdict| assert_eq!(sqlstate(state).verdict(), expected, "{state}");
        check("40001", Verdict::Snooze(CONFLICT_PAUSE));
        check("40P01", Verdict::Snooze(CONFLICT_PAUSE));
        check("08006", Verdict::Retry);
        check("57P01", Verdict::Retry);
        check("55P03", Verdict::Retry);
        check("23505", Verdict::Permanent);
        check("22P02", Verdict::Permanent);
        check("42P01", Verdict::Permanent);
        check("", Verdict::Retry);
    }

    #[test]
    fn a_json_error_is_judged() {
        let error = |text: &str| serde_json::from_str::<u8>(text).unwrap_err();
        assert_eq!(json(error("\"x\"")).verdict(), Verdict::Permanent);
        assert_eq!(json(error("{")).verdict(), Verdict::Permanent);
        assert_eq!(json(error("")).verdict(), Verdict::Retry);
    }
}
