//! When a schedule runs: a cron line, a fixed interval, or a list of instants; in a time zone, with what becomes of hours
//! that the zone's clock leaves out or shows twice.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::cron::Cron;
use super::zone::{Stretch, Zone};
use super::{duration, instant, micros};
use crate::Error;

/// Instants of one list, at most.
const TIMES_MAX: usize = 1_000;
/// Bytes of a rule's text, at most: the longest list.
const RULE_BYTES_MAX: usize = 64 * 1024;
/// How far ahead the next time may lie: five Mondays in a February can be 40 years apart, around 2100.
const AHEAD_MAX: i64 = 50 * 366 * 86_400;

/// What becomes of a time that the zone's clock leaves out, when it is put forward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gap {
    /// It runs at the next instant that there is: the end of the gap.
    #[default]
    Next,
    /// It does not run.
    Skip,
}

/// What becomes of a time that the zone's clock shows twice, when it is put back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Twice {
    /// It runs when the clock shows it first.
    #[default]
    First,
    /// It runs when the clock shows it again.
    Second,
    /// It runs both times.
    Both,
}

impl Gap {
    /// Both.
    pub const ALL: [Gap; 2] = [Gap::Next, Gap::Skip];

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Gap> {
        Gap::ALL.into_iter().find(|gap| gap.as_str() == name)
    }

    /// Its name in the database, in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Gap::Next => "next",
            Gap::Skip => "skip",
        }
    }
}

impl Twice {
    /// All three.
    pub const ALL: [Twice; 3] = [Twice::First, Twice::Second, Twice::Both];

    /// The policy of that name.
    pub fn from_name(name: &str) -> Option<Twice> {
        Twice::ALL.into_iter().find(|twice| twice.as_str() == name)
    }

    /// Its name in the database, in JSON and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Twice::First => "first",
            Twice::Second => "second",
            Twice::Both => "both",
        }
    }
}

/// When something runs again and again.
///
/// - a cron line: `30 2 * * *`, with seconds `*/10 * * * * *`, or `@daily`, `@hourly` …; `CRON_TZ=Europe/Berlin ` may stand
///   before it instead of a zone beside it. A line that names hours of the day is held to the policies for gaps and
///   for hours that come twice; one whose hour field begins with `*` follows the clock, whatever it shows;
/// - `@every 90s`, counted from the schedule's anchor and not from the last run;
/// - `@at` and instants, with commas between them.
///
/// ```
/// # fn main() -> Result<(), tenure::Error> {
/// use tenure::{Rule, instant};
///
/// let rule = Rule::new("30 2 * * *", "Europe/Berlin")?;
/// let saturday = instant::read("2027-03-27T12:00[Europe/Berlin]", None)?.at;
/// // At 02:00 the clock goes on to 03:00.
/// assert_eq!(instant::show(rule.next(saturday).unwrap(), "Europe/Berlin")?, "2027-03-28T03:00:00.000+02:00[Europe/Berlin]");
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Rule {
    text: String,
    zone: Zone,
    when: When,
    gap: Gap,
    twice: Twice,
    anchor: i64,
}

#[derive(Clone, Debug)]
enum When {
    Cron(Box<Cron>),
    /// Whole seconds.
    Every(i64),
    /// Sorted.
    Times(Vec<i64>),
}

impl Rule {
    /// Reads a rule. `zone` is a name of the IANA database.
    ///
    /// # Errors
    /// `BadInput`, naming the field that is wrong.
    pub fn new(text: &str, zone: &str) -> Result<Rule, Error> {
        let (text, zone) = match without_zone(text.trim()) {
            (line, Some(own)) if !zone.is_empty() && own != zone => {
                return Err(Error::bad_input(
                    format!("{text:?} names the zone {own:?}, and {zone:?} is given beside it: {line}"),
                    "give one of them",
                ));
            }
            (line, Some(own)) => (line, own),
            (line, None) => (line, zone),
        };
        let zone = Zone::named(zone)?;
        let when = read_when(text, &zone)?;
        Ok(Rule { text: text.to_owned(), zone, when, gap: Gap::default(), twice: Twice::default(), anchor: 0 })
    }

    /// What becomes of a time that does not exist; [`Gap::Next`] when not given.
    pub fn gap(mut self, gap: Gap) -> Rule {
        self.gap = gap;
        self
    }

    /// What becomes of a time that comes twice; [`Twice::First`] when not given.
    pub fn twice(mut self, twice: Twice) -> Rule {
        self.twice = twice;
        self
    }

    /// From when `@every` counts, to the second; 1970 when not given.
    pub fn anchor(mut self, at: SystemTime) -> Rule {
        self.anchor = micros(at).div_euclid(1_000_000);
        self
    }

    pub(crate) fn anchor_second(mut self, second: i64) -> Rule {
        self.anchor = second;
        self
    }

    /// The rule as it is stored, without its zone.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The zone's name.
    pub fn zone(&self) -> &str {
        self.zone.name()
    }

    pub(crate) fn policy_names(&self) -> (&'static str, &'static str) {
        (self.gap.as_str(), self.twice.as_str())
    }

    pub(crate) fn policies(&self) -> (Gap, Twice) {
        (self.gap, self.twice)
    }

    /// Do the policies for gaps and for hours that come twice make a difference? They do for lines that name hours.
    pub fn names_hours(&self) -> bool {
        matches!(&self.when, When::Cron(cron) if cron.has_hours())
    }

    /// Is it counted from the anchor?
    pub(crate) fn is_interval(&self) -> bool {
        matches!(&self.when, When::Every(_))
    }

    /// The first time after this instant; none: there is no further one.
    pub fn next(&self, after: SystemTime) -> Option<SystemTime> {
        let next = self.next_after(micros(after).div_euclid(1_000_000))?;
        Some(SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(next).ok()?))
    }

    /// What is out of the ordinary about one of its times, for people.
    pub fn remark(&self, at: SystemTime) -> Option<&'static str> {
        let When::Cron(cron) = &self.when else { return None };
        let instant = micros(at).div_euclid(1_000_000);
        let shown = instant + self.zone.offset_at(instant);
        if cron.first_from(shown) != Some(shown) {
            return Some("the clock leaves its time out: the next one that exists");
        }
        match self.zone.instants_of(shown)[..] {
            [first, _, ..] if first == instant => Some("the clock shows it twice: the first"),
            [_, _, ..] => Some("the clock shows it twice: the second"),
            _ => None,
        }
    }

    /// In seconds since 1970: strictly after.
    pub(crate) fn next_after(&self, after: i64) -> Option<i64> {
        match &self.when {
            When::Cron(cron) => self.next_of_cron(cron, after),
            When::Every(seconds) => {
                let past = (after - self.anchor).div_euclid(*seconds);
                Some((self.anchor + (past + 1) * seconds).max(self.anchor))
            }
            When::Times(times) => times.get(times.partition_point(|at| *at <= after)).copied(),
        }
    }

    /// Stretch by stretch of the zone, for within one a wall time is an instant and the other way round.
    fn next_of_cron(&self, cron: &Cron, after: i64) -> Option<i64> {
        // Every hour, or every so many: whatever the clock shows, as often as it shows it.
        let (gap, twice) = if cron.has_hours() { (self.gap, self.twice) } else { (Gap::Skip, Twice::Both) };
        let mut stretch = self.zone.stretch(after);
        loop {
            if let Some(found) = first_in(&stretch, cron, after, gap, twice)? {
                return Some(found);
            }
            stretch = self.zone.stretch(stretch.end.filter(|end| *end < after.saturating_add(AHEAD_MAX))?);
        }
    }
}

/// The first instant of a stretch, after `after`, at which the line runs. None at all: it never runs again.
fn first_in(stretch: &Stretch, cron: &Cron, after: i64, gap: Gap, twice: Twice) -> Option<Option<i64>> {
    let Stretch { start, end, offset, before, after: offset_after } = *stretch;
    let mut from = after.saturating_add(1) + offset;
    let mut until = end.map_or(i64::MAX, |end| end + offset);
    if let Some(start) = start.filter(|start| *start > after) {
        from = start + offset;
        let left_out = start + before..start + offset;
        if gap == Gap::Next && !left_out.is_empty() && cron.first_from(left_out.start)? < left_out.end {
            return Some(Some(start));
        }
    }
    // The wall times from the start on were shown before, up to where the former offset had come.
    if let Some(start) = start
        && twice == Twice::First
    {
        from = from.max(start + before);
    }
    // Those before the end are shown again, from where the next offset begins.
    if let Some(end) = end
        && twice == Twice::Second
    {
        until = until.min(end + offset_after);
    }
    let found = cron.first_from(from)?;
    Some((found < until).then_some(found - offset))
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.text, self.zone.name())
    }
}

/// `CRON_TZ=` and `TZ=`, as some crons have it.
fn without_zone(text: &str) -> (&str, Option<&str>) {
    let named = text.strip_prefix("CRON_TZ=").or_else(|| text.strip_prefix("TZ="));
    match named.and_then(|rest| rest.split_once(char::is_whitespace)) {
        Some((zone, line)) => (line.trim_start(), Some(zone)),
        None => (text, None),
    }
}

fn read_when(text: &str, zone: &Zone) -> Result<When, Error> {
    if text.len() > RULE_BYTES_MAX {
        return Err(Error::bad_input(
            format!("the rule has {} bytes, more than {RULE_BYTES_MAX}", text.len()),
            "make several schedules of it",
        ));
    }
    let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    match word.to_ascii_lowercase().as_str() {
        "@every" => read_every(text, rest.trim()),
        "@at" => read_times(rest, zone),
        _ => {
            let cron = Cron::read(text).map_err(|what| {
                let shown: String = text.chars().take(80).collect();
                Error::bad_input(
                    format!("{shown:?} is not a cron line: {what}"),
                    "for example 30 2 * * * (half past two), */15 * * * * (each quarter), @daily, @every 90s",
                )
            })?;
            Ok(When::Cron(Box::new(cron)))
        }
    }
}

fn read_every(text: &str, rest: &str) -> Result<When, Error> {
    const YEAR: Duration = Duration::from_secs(366 * 86_400);
    let wrong =
        |what: String| Error::bad_input(format!("{text:?}: {what}"), "write @every 90s, @every 1h30m or @every 7d");
    let every = duration::read(rest).map_err(|error| wrong(error.message().to_owned()))?;
    match every.subsec_nanos() == 0 && (Duration::from_secs(1)..=YEAR).contains(&every) {
        true => Ok(When::Every(every.as_secs() as i64)),
        false => Err(wrong("an interval is 1 second to 366 days, in whole seconds".to_owned())),
    }
}

fn read_times(rest: &str, zone: &Zone) -> Result<When, Error> {
    let texts: Vec<&str> = rest.split(',').map(str::trim).filter(|text| !text.is_empty()).collect();
    if texts.is_empty() || texts.len() > TIMES_MAX {
        return Err(Error::bad_input(
            format!("@at has {} instants", texts.len()),
            format!("write 1 to {TIMES_MAX}, with commas between them: @at 2027-01-31T09:00, 2027-02-28T09:00"),
        ));
    }
    let mut times = Vec::with_capacity(texts.len());
    for text in texts {
        let at = instant::read(text, Some(zone.name())).map_err(|error| error.context("@at"))?.at;
        // A fraction of a second would be early otherwise.
        times.push(-(-micros(at)).div_euclid(1_000_000));
    }
    times.sort_unstable();
    times.dedup();
    Ok(When::Times(times))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SystemTime {
        instant::read(text, Some("UTC")).unwrap().at
    }

    fn times(rule: &Rule, after: &str, count: usize) -> Vec<String> {
        let mut after = at(after);
        let next = |_| {
            after = rule.next(after)?;
            Some(instant::show(after, "UTC").unwrap().replace(":00.000Z", ""))
        };
        (0..count).map_while(next).collect()
    }

    #[test]
    fn an_hour_that_does_not_exist_follows_its_policy_and_quarters_go_on() {
        let check = |line: &str, gap: Gap, expected: &[&str]| {
            let rule = Rule::new(line, "America/Chicago").unwrap().gap(gap);
            assert_eq!(times(&rule, "2024-03-09T08:00Z", expected.len()), expected, "{line} {gap:?}");
        };
        check("30 2 * * *", Gap::Next, &["2024-03-09T08:30", "2024-03-10T08:00", "2024-03-11T07:30"]);
        check("30 2 * * *", Gap::Skip, &["2024-03-09T08:30", "2024-03-11T07:30"]);
        // Both of these hours run on that day: the one that is missing at its end, which is the other one's time.
        check("0 2,3 * * *", Gap::Next, &["2024-03-09T09:00", "2024-03-10T08:00", "2024-03-11T07:00"]);
        check(
            "30 2,3 * * *",
            Gap::Next,
            &["2024-03-09T08:30", "2024-03-09T09:30", "2024-03-10T08:00", "2024-03-10T08:30"],
        );
        let quarters = times(&Rule::new("*/15 * * * *", "America/Chicago").unwrap(), "2024-03-10T05:59:00Z", 96);
        assert_eq!((quarters[0].as_str(), quarters[95].as_str()), ("2024-03-10T06:00", "2024-03-11T05:45"));
    }

    #[test]
    fn an_hour_that_comes_twice_follows_its_policy_and_half_hours_go_on() {
        let check = |line: &str, twice: Twice, expected: &[&str]| {
            let rule = Rule::new(line, "America/Chicago").unwrap().twice(twice);
            assert_eq!(times(&rule, "2024-11-03T05:00Z", expected.len()), expected, "{line} {twice:?}");
        };
        check("30 1 * * *", Twice::First, &["2024-11-03T06:30", "2024-11-04T07:30"]);
        check("30 1 * * *", Twice::Second, &["2024-11-03T07:30", "2024-11-04T07:30"]);
        check("30 1 * * *", Twice::Both, &["2024-11-03T06:30", "2024-11-03T07:30", "2024-11-04T07:30"]);
        check(
            "0,30 1 * * *",
            Twice::Both,
            &["2024-11-03T06:00", "2024-11-03T06:30", "2024-11-03T07:00", "2024-11-03T07:30"],
        );
        check("0 * * * *", Twice::First, &["2024-11-03T06:00", "2024-11-03T07:00", "2024-11-03T08:00"]);
        let halves = times(&Rule::new("*/30 * * * *", "Australia/Melbourne").unwrap(), "2024-04-06T14:59Z", 5);
        assert_eq!(
            halves,
            ["2024-04-06T15:00", "2024-04-06T15:30", "2024-04-06T16:00", "2024-04-06T16:30", "2024-04-06T17:00"]
        );
    }

    #[test]
    fn a_day_that_a_zone_left_out_ends_no_schedule() {
        let rule = Rule::new("30 2 * * *", "Pacific/Apia").unwrap();
        // There was no 30 December 2011: the run that it would have had comes with the first instant of the 31st.
        assert_eq!(
            times(&rule, "2011-12-29T00:00Z", 4),
            ["2011-12-29T12:30", "2011-12-30T10:00", "2011-12-30T12:30", "2011-12-31T12:30"]
        );
    }

    #[test]
    fn an_interval_is_counted_from_its_anchor() {
        let rule = Rule::new("@every 90s", "UTC").unwrap().anchor(at("2026-01-01T00:00:30Z"));
        assert_eq!(times(&rule, "2026-01-01T00:01:00Z", 2), ["2026-01-01T00:02", "2026-01-01T00:03:30.000Z"]);
        assert_eq!(times(&rule, "2025-06-01T00:00:00Z", 1), ["2026-01-01T00:00:30.000Z"]);
    }

    #[test]
    fn a_list_of_instants_comes_to_its_end() {
        let rule = Rule::new("@at 2027-02-28T09:00, 2027-01-31T09:00,2027-03-28T02:30", "Europe/Berlin").unwrap();
        assert_eq!(times(&rule, "2026-01-01T00:00Z", 9), ["2027-01-31T08:00", "2027-02-28T08:00", "2027-03-28T01:00"]);
    }

    #[test]
    fn a_zone_before_the_line_is_its_zone() {
        let rule = Rule::new("CRON_TZ=Asia/Tokyo 0 9 * * *", "").unwrap();
        assert_eq!((rule.zone(), rule.text()), ("Asia/Tokyo", "0 9 * * *"));
        assert!(Rule::new("TZ=Asia/Tokyo 0 9 * * *", "UTC").unwrap_err().to_string().contains("give one of them"));
    }

    #[test]
    fn what_is_no_rule_is_named_with_the_way_out() {
        let check = |text: &str, part: &str| {
            let error = Rule::new(text, "UTC").unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        check("61 2 * * *", "\"61 2 * * *\" is not a cron line: minute 61 is outside 0-59");
        check("@every", "is not a duration");
        check("@every 500ms", "1 second to 366 days");
        check("@every 400d", "1 second to 366 days");
        check("@at", "@at has 0 instants");
        check("@at 2027-01-31", "a date without a time");
        check("@daily at noon", "is not known");
        assert!(Rule::new("@daily", "Nowhere").unwrap_err().to_string().contains("\"Nowhere\" is not a time zone"));
    }

    #[test]
    fn the_next_time_is_later_and_nothing_lies_between() {
        // Around the changes of two zones, second by second of every tenth minute.
        let check = |line: &str, zone: &str, from: &str, expected_first: &str| {
            let rule = Rule::new(line, zone).unwrap();
            let (from, mut last) = (micros(at(from)) / 1_000_000, 0);
            assert_eq!(times(&rule, &instant::show(at_second(from), "UTC").unwrap(), 1), [expected_first], "{line}");
            for after in (from..from + 4 * 86_400).step_by(601) {
                let next = rule.next_after(after).unwrap();
                assert!(next > after && next >= last, "{line}: after {after} comes {next}, before it came {last}");
                assert_eq!(rule.next_after(next - 1), Some(next), "{line}: {next} is one");
                last = next;
            }
        };
        check("0,15,30,45 6-22 * * *", "Europe/Brussels", "2023-10-28T20:45Z", "2023-10-29T05:00");
        check("20 */4 * * *", "America/Los_Angeles", "2023-03-11T00:00Z", "2023-03-11T00:20");
    }

    fn at_second(second: i64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second as u64)
    }
}
