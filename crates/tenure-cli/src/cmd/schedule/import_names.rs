//! Names for what is imported: each once, and the same again for what was imported before.

use std::collections::{HashMap, HashSet};

use tenure::{Client, Error, Schedule, ScheduleInfo};

/// Of a name, so that a number has room behind it.
const NAME_START_BYTES: usize = 120;

/// Schedules that are read at a time.
const PAGE: usize = 1_000;

/// Names that are not given twice, and the schedules that have them.
pub struct Names {
    /// Those that an entry may be named like, whatever number stands behind.
    stored: HashMap<String, ScheduleInfo>,
    taken: HashSet<String>,
}

impl Names {
    /// All are read, once: which numbers are left of those that were given before is not known, and one that is missing says nothing of the others.
    pub async fn read(client: &Client, prefix: &str, wishes: &[&Schedule]) -> Result<Names, Error> {
        let starts: HashSet<String> = wishes.iter().map(|wish| start(prefix, wish.name())).collect();
        let is_like_one =
            |name: &str| starts.contains(name) || numbered(name).is_some_and(|(start, _)| starts.contains(start));
        let mut stored = HashMap::new();
        let mut after: Option<String> = None;
        loop {
            let page = client.schedules(after.as_deref(), Some(PAGE)).await?;
            after = page.last().map(|info| info.name.clone());
            let is_last = page.len() < PAGE;
            let like = page.into_iter().filter(|info| is_like_one(&info.name));
            stored.extend(like.map(|info| (info.name.clone(), info)));
            if is_last {
                return Ok(Names { stored, taken: HashSet::new() });
            }
        }
    }

    /// The schedule that has that name.
    pub fn stored(&self, name: &str) -> Option<&ScheduleInfo> {
        self.stored.get(name)
    }

    /// The name of the schedule of that wish that says the same already: of several the one with the least number.
    pub fn made_before(&mut self, prefix: &str, wish: &Schedule) -> Option<String> {
        let start = start(prefix, wish.name());
        let number = |name: &str| match numbered(name) {
            _ if name == start => Some(1),
            Some((before, number)) if before == start => Some(number),
            Some(_) | None => None,
        };
        let says_so = self.stored.values().filter(|info| !self.taken.contains(&info.name) && info.says(wish));
        let (_, name) = says_so.filter_map(|info| Some((number(&info.name)?, &info.name))).min()?;
        let name = name.clone();
        self.taken.insert(name.clone());
        Some(name)
    }

    /// The first that no other entry has.
    pub fn free(&mut self, prefix: &str, wish: &str) -> String {
        let free = candidates(prefix, wish).find(|name| self.taken.insert(name.clone()));
        free.unwrap_or_default()
    }
}

/// The wish, cut to what a name may have, then with numbers behind it.
pub fn candidates(prefix: &str, wish: &str) -> impl Iterator<Item = String> {
    let start = start(prefix, wish);
    (1_u64..).map(move |n| if n == 1 { start.clone() } else { format!("{start}-{n}") })
}

fn start(prefix: &str, wish: &str) -> String {
    let mut start = String::new();
    for c in prefix.chars().chain(wish.chars()).filter(|c| !c.is_control()) {
        if start.len() + c.len_utf8() > NAME_START_BYTES {
            break;
        }
        start.push(c);
    }
    start
}

/// A name with a number behind it, as [`candidates`] gives them.
fn numbered(name: &str) -> Option<(&str, u64)> {
    let (start, digits) = name.rsplit_once('-')?;
    let number: u64 = digits.parse().ok()?;
    (number > 1 && number.to_string() == digits).then_some((start, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers_behind_them_and_are_short() {
        let names: Vec<String> = candidates("c-", "back\nup").take(3).collect();
        assert_eq!(names, ["c-backup", "c-backup-2", "c-backup-3"]);
        assert_eq!(candidates("", &"ä".repeat(200)).next().map(|name| name.len()), Some(NAME_START_BYTES));
    }

    #[test]
    fn a_number_is_read_as_it_was_written() {
        assert_eq!(numbered("back-up-12"), Some(("back-up", 12)));
        for name in ["backup", "backup-1", "backup-02", "backup-+2", "backup-"] {
            assert_eq!(numbered(name), None, "{name}");
        }
    }
}
