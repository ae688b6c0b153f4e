//! What goes to stdout: lines, tables, JSON.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, SystemTime};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;
use tenure::Error;

use crate::exit::Outcome;

/// What [`last_lines`] shows: a screen, and no line that fills it alone.
const LAST_LINES: usize = 20;
const LAST_LINE_CHARS: usize = 200;

/// One line.
pub fn line(text: &str) -> io::Result<()> {
    writeln!(io::stdout().lock(), "{text}")
}

/// One line with words that came from elsewhere.
pub fn foreign_line(text: &str) -> io::Result<()> {
    line(&harmless(text))
}

/// A text that ends with its own newline.
pub fn text(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// One JSON value: indented for a terminal, on one line for a program.
pub fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = match io::stdout().is_terminal() {
        true => serde_json::to_string_pretty(value)?,
        false => serde_json::to_string(value)?,
    };
    Ok(line(&text)?)
}

/// A page of a list.
pub struct Page<'a, T> {
    /// What is on it.
    pub items: &'a [T],
    /// How much there may be on it.
    pub limit: usize,
}

impl<'a, T> Page<'a, T> {
    /// As a JSON array.
    pub fn json<J: Serialize>(&self, of: impl Fn(&'a T) -> J) -> Outcome {
        json(&self.items.iter().map(of).collect::<Vec<_>>())?;
        Ok(0)
    }

    /// As a table, and on stderr the words for the next page, from the last item of this one.
    pub fn table(
        &self,
        header: &[&str],
        none: &str,
        row: impl Fn(&T) -> Result<Vec<String>, Error>,
        next: impl Fn(&T) -> String,
    ) -> Outcome {
        table(header, self.items.iter().map(row).collect::<Result<_, Error>>()?, none)?;
        if let Some(last) = self.items.last().filter(|_| self.items.len() == self.limit) {
            eprintln!("there may be more: {}", next(last));
        }
        Ok(0)
    }
}

/// Rows under a header; or the words for "none", on stderr.
pub fn table(header: &[&str], rows: Vec<Vec<String>>, none: &str) -> io::Result<()> {
    if rows.is_empty() {
        eprintln!("{none}");
        return Ok(());
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled).set_header(header);
    for row in rows {
        table.add_row(row.iter().map(|cell| harmless(cell).replace(['\n', '\t'], " ")));
    }
    let padded = table.to_string();
    padded.lines().try_for_each(|row| line(row.trim()))
}

/// Names and values, one a line; further lines of a value are indented.
pub fn facts(facts: &[(&str, String)]) -> io::Result<()> {
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    facts.iter().filter(|(_, value)| !value.is_empty()).try_for_each(|(name, value)| {
        let indented = harmless(value).replace('\n', &format!("\n{:width$}  ", ""));
        line(&format!("{name:width$}  {indented}"))
    })
}

/// The end of a text that came from elsewhere, indented under its title, with a free line above.
pub fn last_lines(title: &str, text: &str) -> io::Result<()> {
    let text = harmless(text);
    let lines: Vec<&str> = text.trim_end().lines().collect();
    let left_out = lines.len().saturating_sub(LAST_LINES);
    let how_many = match left_out {
        0 => String::new(),
        _ => format!(" (the last {LAST_LINES} of {} lines; --json has more)", lines.len()),
    };
    line("")?;
    line(&format!("{title}{how_many}"))?;
    lines[left_out..].iter().try_for_each(|text| line(format!("  {}", start_of(text, LAST_LINE_CHARS)).trim_end()))
}

/// A text that came from elsewhere, without what a terminal would obey: the escape sequences in a program's stderr, or
/// a remote server's error, could retitle the window, move the cursor over other lines, or write to the clipboard.
fn harmless(text: &str) -> String {
    let shown = |c: char| match c {
        '\n' | '\t' => c,
        // U+2400 and the following are pictures of the control characters.
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or(char::REPLACEMENT_CHARACTER),
        c if c.is_control() => char::REPLACEMENT_CHARACTER,
        // They turn the order of what follows around, and end lines where none ends.
        '\u{061c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            char::REPLACEMENT_CHARACTER
        }
        c => c,
    };
    text.replace("\r\n", "\n").chars().map(shown).collect()
}

/// An instant in RFC 3339, UTC, to the millisecond.
pub fn instant(at: SystemTime) -> String {
    match jiff::Timestamp::try_from(at) {
        Ok(at) => format!("{at:.3}"),
        Err(_) => "out of range".to_owned(),
    }
}

/// How long ago, or in how long, in its two largest units: `3m 20s ago`, `in 2h 5m`.
pub fn relative(at: SystemTime, now: SystemTime) -> String {
    match now.duration_since(at) {
        Ok(past) => format!("{} ago", rough(past)),
        Err(future) => format!("in {}", rough(future.duration())),
    }
}

/// A duration in its two largest units.
pub fn rough(duration: Duration) -> String {
    let s = duration.as_secs();
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m {}s", s / 60, s % 60),
        3_600..86_400 => format!("{}h {}m", s / 3_600, s % 3_600 / 60),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3_600),
    }
}

/// A duration as it is typed, in its largest whole unit: `500ms`, `90s`, `7d`.
pub fn exact(duration: Duration) -> String {
    tenure::duration::show(duration)
}

/// The start of a text, on one line.
pub fn start_of(text: &str, chars_max: usize) -> String {
    let mut start: String = text.chars().take(chars_max).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().nth(chars_max).is_some() {
        start.push('…');
    }
    start
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_short_and_readable() {
        let check = |s: u64, expected: &str| assert_eq!(rough(Duration::from_secs(s)), expected);
        check(7, "7s");
        check(200, "3m 20s");
        check(7_500, "2h 5m");
        check(90_000, "1d 1h");
        let check = |ms: u64, expected: &str| assert_eq!(exact(Duration::from_millis(ms)), expected);
        check(500, "500ms");
        check(1_500, "1500ms");
        check(5_400_000, "90m");
        check(604_800_000, "7d");
        check(0, "0ms");
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert_eq!(relative(now - Duration::from_secs(5), now), "5s ago");
        assert_eq!(relative(now + Duration::from_secs(65), now), "in 1m 5s");
        assert_eq!(instant(now), "1970-01-12T13:46:40.000Z");
    }

    #[test]
    fn what_a_terminal_would_obey_is_shown_instead() {
        let check = |text: &str, expected: &str| assert_eq!(harmless(text), expected);
        check("a\tb\r\nc", "a\tb\nc");
        check("\x1b[2Jx\x07\0", "\u{241b}[2Jx\u{2407}\u{2400}");
        check("50%\r100%", "50%\u{240d}100%");
        check("\u{9b}2J\u{7f}ä", "\u{fffd}2J\u{fffd}ä");
        check("a\u{202e}txt.exe\u{2066}\u{2028}b", "a\u{fffd}txt.exe\u{fffd}\u{fffd}b");
    }

    #[test]
    fn long_texts_are_cut_on_one_line() {
        assert_eq!(start_of("a\nb", 10), "a b");
        assert_eq!(start_of("äöü", 2), "äö…");
    }
}
