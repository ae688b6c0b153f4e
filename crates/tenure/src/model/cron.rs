//! Cron lines: read strictly, so that what is not supported is refused and never taken for something else; which wall
//! times they name is croner's work, on plain dates and times without a zone. What becomes of such a time where the zone's
//! clock leaves it out or shows it twice is decided in `rule.rs`.
//!
//! The dialect is Vixie cron's, with seconds as an optional first field, and L, W and # in the day fields. Both day fields
//! restricted mean either; a day field that begins with `*` restricts nothing but by its step, and both have to fit.

use croner::parser::{CronParser, Seconds, Year};
use jiff::civil::DateTime;

use super::zone::{civil, wall};

/// A line is shorter in any use that makes sense.
const LINE_BYTES_MAX: usize = 256;

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const DAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// A field of a line: its name, its range, the names for its numbers.
struct Field {
    name: &'static str,
    min: u16,
    max: u16,
    names: &'static [&'static str],
}

const FIELDS: [Field; 6] = [
    Field { name: "second", min: 0, max: 59, names: &[] },
    Field { name: "minute", min: 0, max: 59, names: &[] },
    Field { name: "hour", min: 0, max: 23, names: &[] },
    Field { name: "day of month", min: 1, max: 31, names: &[] },
    Field { name: "month", min: 1, max: 12, names: MONTHS },
    Field { name: "day of week", min: 0, max: 7, names: DAYS },
];
const HOUR: usize = 2;
const DAY_OF_MONTH: usize = 3;
const DAY_OF_WEEK: usize = 5;

/// A cron line that names some wall time.
#[derive(Clone, Debug)]
pub(crate) struct Cron {
    matcher: croner::Cron,
    /// It names hours of the day, as opposed to every hour or every so many.
    has_hours: bool,
}

impl Cron {
    /// Reads five or six fields, or `@daily` and the like. What is wrong is said without the line itself.
    pub(crate) fn read(text: &str) -> Result<Cron, String> {
        if text.len() > LINE_BYTES_MAX {
            return Err(format!("it has {} bytes, more than {LINE_BYTES_MAX}", text.len()));
        }
        let line = match text.trim_start().starts_with('@') {
            true => nickname(text.trim())?,
            false => text,
        };
        let mut fields: Vec<&str> = line.split_ascii_whitespace().collect();
        match fields.len() {
            5 => fields.insert(0, "0"),
            6 => {}
            found => {
                return Err(format!(
                    "it has {found} fields; write 5 (minute hour day month weekday) or 6 (a second before them)"
                ));
            }
        }
        let read: Vec<String> =
            FIELDS.iter().zip(&fields).map(|(field, text)| field.read(text)).collect::<Result<_, _>>()?;
        check_last(&read[DAY_OF_MONTH])?;
        // Vixie cron's rule: either of two restricted fields is enough, unless one of them begins with a star.
        let both = [DAY_OF_MONTH, DAY_OF_WEEK].iter().any(|field| read[*field].starts_with('*'));
        let parser = CronParser::builder().seconds(Seconds::Required).year(Year::Disallowed).dom_and_dow(both).build();
        let matcher = parser.parse(&read.join(" ")).map_err(|error| error.to_string())?;
        let all_hours = matcher.pattern.hours.values().len() == 24;
        let cron = Cron { matcher, has_hours: !read[HOUR].starts_with('*') && !all_hours };
        let any_weekday = read[DAY_OF_WEEK] == "*";
        // croner would look through thousands of years. What is left for it to find are days that a weekday rules out.
        let comes = !(any_weekday && cron.never_comes(&read[DAY_OF_MONTH]))
            && cron.first_from(wall(DateTime::constant(2024, 1, 1, 0, 0, 0, 0))).is_some();
        match comes {
            true => Ok(cron),
            false => Err(format!("no date is day {} of month {}: it would never run", fields[DAY_OF_MONTH], fields[4])),
        }
    }

    /// Whether it names hours of the day: then a missing hour is made up for, and one that comes twice counts once.
    pub(crate) fn has_hours(&self) -> bool {
        self.has_hours
    }

    /// No month of the line has a day of these.
    fn never_comes(&self, days: &str) -> bool {
        const LONGEST: [u16; 12] = [31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let longest =
            self.matcher.pattern.months.values().into_iter().map(|month| LONGEST[usize::from(month) - 1]).max();
        let plain = self.matcher.pattern.days.values();
        let near = days.split(',').filter_map(|part| digits(part.strip_suffix('W')?));
        // The last day of a month is always there.
        let first = if days.contains('L') { Some(1) } else { plain.into_iter().chain(near).min() };
        first > longest
    }

    /// The first wall time that it names, this one or a later.
    pub(crate) fn first_from(&self, from: i64) -> Option<i64> {
        self.matcher.find_next_occurrence(&civil(from), true).ok().map(wall)
    }
}

fn nickname(text: &str) -> Result<&'static str, String> {
    Ok(match text.to_ascii_lowercase().as_str() {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        "@reboot" => return Err("@reboot is no time; enqueue a job where your program starts".to_owned()),
        _ => {
            return Err(format!(
                "{text} is not known; there are @yearly, @monthly, @weekly, @daily, @hourly, @every 90s and @at with instants"
            ));
        }
    })
}

/// croner takes an L beside a W of the same list for LW.
fn check_last(days: &str) -> Result<(), String> {
    let mut parts = days.split(',');
    let is_last = parts.any(|part| part == "L");
    match is_last && days.contains('W') {
        true => Err("day of month: L and W cannot stand in one list; make two schedules".to_owned()),
        false => Ok(()),
    }
}

impl Field {
    /// The field in numbers, as croner reads it.
    fn read(&self, text: &str) -> Result<String, String> {
        let upper = text.to_ascii_uppercase();
        if upper == "?" && self.is_days() {
            return Ok("*".to_owned());
        }
        let parts: Vec<String> = upper.split(',').map(|part| self.read_part(part)).collect::<Result<_, _>>()?;
        match parts.len() > 1 && parts.iter().any(|part| part.starts_with('*')) {
            true => Err(format!("{}: {text} has * in a list", self.name)),
            false => Ok(parts.join(",")),
        }
    }

    fn is_days(&self) -> bool {
        [FIELDS[DAY_OF_MONTH].name, FIELDS[DAY_OF_WEEK].name].contains(&self.name)
    }

    /// One of a list: `*`, `*/5`, `3`, `1-5`, `1-30/2`, `FRI`, and in the day fields `L`, `15W`, `LW`, `MON#2`, `FRIL`.
    fn read_part(&self, part: &str) -> Result<String, String> {
        let (range, step) = match part.split_once('/') {
            Some((range, step)) => (range, Some(self.read_step(part, step)?)),
            None => (part, None),
        };
        let read = match (range, range.split_once('-')) {
            ("*", _) => "*".to_owned(),
            // Of `L-3` nobody would expect the last day.
            (_, Some((from, to))) if from != "L" => self.read_range(part, from, to)?,
            _ if step.is_some() => {
                return Err(format!("{}: {part} has a step without a range; write {range}-{}/…", self.name, self.max));
            }
            _ => match self.read_special(part)? {
                Some(special) => special,
                None => self.number(part, range)?.to_string(),
            },
        };
        Ok(step.map_or(read.clone(), |step| format!("{read}/{step}")))
    }

    fn read_range(&self, part: &str, from: &str, to: &str) -> Result<String, String> {
        let (from, mut to) = (self.number(part, from)?, self.number(part, to)?);
        if self.names == DAYS && to == 0 && from > 0 {
            to = 7; // FRI-SUN
        }
        match from <= to {
            true => Ok(format!("{from}-{to}")),
            false => Err(format!("{}: {part} goes backwards; write {from}-{},{}-{to}", self.name, self.max, self.min)),
        }
    }

    fn read_step(&self, part: &str, step: &str) -> Result<u16, String> {
        let span = self.max - self.min;
        match digits(step) {
            Some(step) if (1..=span).contains(&step) => Ok(step),
            Some(step) => Err(format!("{}: the step {step} of {part} is outside 1-{span}", self.name)),
            None => Err(format!("{}: {part} has no number as its step", self.name)),
        }
    }

    /// What only a day field can hold.
    fn read_special(&self, part: &str) -> Result<Option<String>, String> {
        let nth = |n: &str| digits(n).filter(|n| (1..=5).contains(n));
        match self.name {
            "day of month" if part == "L" || part == "LW" => Ok(Some(part.to_owned())),
            "day of month" if part.ends_with('W') => {
                let day = self.number(part, &part[..part.len() - 1])?;
                Ok(Some(format!("{day}W")))
            }
            "day of week" if part.contains('#') => {
                let (day, n) = part.split_once('#').unwrap_or_default();
                let day = self.number(part, day)? % 7;
                let n = nth(n).ok_or_else(|| format!("{}: {part} counts outside 1-5", self.name))?;
                Ok(Some(format!("{day}#{n}")))
            }
            "day of week" if part == "L" => {
                Err(format!("{}: L needs a day before it; write FRIL for the last Friday", self.name))
            }
            "day of week" if part.len() > 1 && part.ends_with('L') => {
                let day = self.number(part, &part[..part.len() - 1])? % 7;
                Ok(Some(format!("{day}L")))
            }
            _ if part == "H" || part.starts_with("H(") => {
                Err(format!("{}: H is not supported; write a number, and spread schedules by their jitter", self.name))
            }
            _ => Ok(None),
        }
    }

    /// A number or the name for one, within the range.
    fn number(&self, part: &str, text: &str) -> Result<u16, String> {
        if let Some(at) = self.names.iter().position(|name| *name == text) {
            return Ok(at as u16 + self.min);
        }
        match digits(text) {
            Some(number) if (self.min..=self.max).contains(&number) => Ok(number),
            Some(number) => Err(format!("{} {number} is outside {}-{}", self.name, self.min, self.max)),
            None if part.is_empty() => Err(format!("{}: a value of the list is missing", self.name)),
            None => Err(format!("{}: {part} cannot be read", self.name)),
        }
    }
}

fn digits(text: &str) -> Option<u16> {
    let all = !text.is_empty() && text.len() <= 4 && text.bytes().all(|byte| byte.is_ascii_digit());
    all.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The next five wall times after noon of New Year's Day 2025, a Wednesday.
    fn next_five(line: &str) -> String {
        let cron = Cron::read(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let mut from = wall(DateTime::constant(2025, 1, 1, 12, 0, 0, 0));
        let times = (0..5).map(|_| {
            let found = cron.first_from(from).unwrap();
            from = found + 1;
            civil(found).strftime("%y-%m-%d %H:%M:%S").to_string()
        });
        times.collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn two_restricted_day_fields_mean_either_and_a_star_with_a_step_means_both() {
        let check = |line: &str, expected: &str| assert_eq!(next_five(line), expected, "{line}");
        check(
            "0 9 1 * 1",
            "25-01-06 09:00:00, 25-01-13 09:00:00, 25-01-20 09:00:00, 25-01-27 09:00:00, 25-02-01 09:00:00",
        );
        // Mondays that are odd days, as in Vixie cron.
        check(
            "0 9 */2 * 1",
            "25-01-13 09:00:00, 25-01-27 09:00:00, 25-02-03 09:00:00, 25-02-17 09:00:00, 25-03-03 09:00:00",
        );
        check(
            "0 9 ? * 2",
            "25-01-07 09:00:00, 25-01-14 09:00:00, 25-01-21 09:00:00, 25-01-28 09:00:00, 25-02-04 09:00:00",
        );
    }

    #[test]
    fn sunday_is_0_and_7_and_names_are_read_in_any_case() {
        for same in ["0 9 * * 0", "0 9 * * 7", "0 9 * * SUN", "  0  9 *\t* sun ", "0 0 9 * * Sun"] {
            assert_eq!(next_five(same), next_five("0 9 * * 0"), "{same}");
        }
        assert_eq!(next_five("0 9 * * 5-7"), next_five("0 9 * * FRI,SAT,SUN"));
        assert_eq!(next_five("0 9 * * fri-sun"), next_five("0 9 * * 0,5,6"));
        assert_eq!(next_five("0 9 * * 1-7"), next_five("0 9 * * *"));
        assert_eq!(next_five("@midnight"), next_five("0 0 0 * * *"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_field() {
        let check = |line: &str, part: &str| {
            let error = Cron::read(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        };
        check("61 2 * * *", "minute 61 is outside 0-59");
        check("0 24 * * *", "hour 24 is outside 0-23");
        check("0 0 0 * *", "day of month 0 is outside 1-31");
        check("0 0 * 13 *", "month 13 is outside 1-12");
        check("0 0 * * 8", "day of week 8 is outside 0-7");
        check("99 * * * * *", "second 99 is outside 0-59");
        check("*/70 * * * *", "minute: the step 70 of */70 is outside 1-59");
        check("*/0 * * * *", "minute: the step 0 of */0");
        check("5/10 * * * *", "minute: 5/10 has a step without a range; write 5-59/…");
        check("0 22-4 * * *", "hour: 22-4 goes backwards; write 22-23,0-4");
        check("0 9 * * FRI-MON", "goes backwards");
        check("1,,2 * * * *", "minute: a value of the list is missing");
        check("*,5 * * * *", "has * in a list");
        check("0 0 L-3 * *", "day of month: L-3 cannot be read");
        check("0 0 L,15W * *", "L and W cannot stand in one list");
        check("0 0 40W * *", "day of month 40 is outside 1-31");
        check("0 0 * * L", "write FRIL");
        check("0 0 * * MON#6", "counts outside 1-5");
        check("0 0 * * +MON", "day of week: +MON cannot be read");
        check("H * * * *", "minute: H is not supported");
        check("0 0 * FOO *", "month: FOO cannot be read");
        check("0 0 * *", "it has 4 fields");
        check("0 0 * * * * 2027", "it has 7 fields");
        check("", "it has 0 fields");
        check("@reboot", "no time");
        check("@fortnightly", "is not known");
        check("0 0 31 2 *", "no date is day 31 of month 2");
        check("0 0 30 FEB *", "would never run");
        check("0 0 31 4,6,9,11 *", "would never run");
        check("0 0 31W 2 ?", "would never run");
        check(&"0,".repeat(200), "more than 256");
    }

    #[test]
    fn rare_dates_are_found_and_impossible_ones_do_not_hang() {
        assert!(next_five("0 0 29 2 *").starts_with("28-02-29 00:00:00, 32-02-29"));
        assert!(next_five("0 0 29 2 1").starts_with("25-02-03 00:00:00, 25-02-10"));
        // Five Mondays in a February.
        assert!(next_five("0 0 * 2 MON#5").starts_with("44-02-29 00:00:00"), "{}", next_five("0 0 * 2 MON#5"));
        let start = std::time::Instant::now();
        (0..10).for_each(|_| assert!(Cron::read("0 0 30 2 *").is_err()));
        assert!(start.elapsed() < std::time::Duration::from_secs(2), "{:?}", start.elapsed());
    }
}
