//! Crontabs, as cron(8) and crontab(5) of Vixie cron and its successors have them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// A line that is not empty and no comment.
pub struct Numbered {
    /// From 1.
    pub number: usize,
    pub text: String,
    pub is: Line,
}

/// What a line is.
pub enum Line {
    Command(Command),
    /// It sets a variable for the lines below it, whose commands have it.
    Setting,
    /// What no schedule can be made of, and why.
    Other(String),
}

/// A command, with all that cron gives it.
#[derive(Debug, PartialEq, Eq)]
pub struct Command {
    pub rule: String,
    /// Of CRON_TZ above it.
    pub zone: Option<String>,
    pub user: Option<String>,
    pub command: String,
    pub stdin: Option<String>,
    pub env: BTreeMap<String, String>,
}

/// The lines of a crontab, in order. `with_user`: commands have a user before them, as in /etc/crontab.
pub fn lines(text: &str, with_user: bool) -> Vec<Numbered> {
    let mut env = BTreeMap::new();
    let mut found = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let is = match setting(line) {
            Some((name, value)) => {
                env.insert(name, value);
                Line::Setting
            }
            None => command(line, with_user, &env).map_or_else(Line::Other, Line::Command),
        };
        found.push(Numbered { number: n + 1, text: line.to_owned(), is });
    }
    found
}

/// `NAME=value`, `NAME = "value"`.
fn setting(line: &str) -> Option<(String, String)> {
    let (name, value) = line.split_once('=')?;
    let name = unquoted(name.trim_end());
    let is_name =
        name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') && !name.starts_with(|c: char| c.is_ascii_digit());
    (is_name && !name.is_empty()).then(|| (name.to_owned(), unquoted(value.trim()).to_owned()))
}

fn unquoted(text: &str) -> &str {
    let inner = |quote: char| text.strip_prefix(quote).and_then(|rest| rest.strip_suffix(quote));
    inner('"').or_else(|| inner('\'')).unwrap_or(text)
}

fn command(line: &str, with_user: bool, env: &BTreeMap<String, String>) -> Result<Command, String> {
    // What some crons have before the first field: do not log it.
    let (rule, rest) = fields(line.strip_prefix('-').unwrap_or(line), if line.starts_with('@') { 1 } else { 5 })?;
    if rule.eq_ignore_ascii_case("@reboot") {
        return Err("@reboot is no time: enqueue a job where your machine or program starts".to_owned());
    }
    let (user, rest) = match with_user {
        true => {
            let (user, rest) = fields(rest, 1)?;
            (Some(user), rest)
        }
        false => (None, rest),
    };
    let (command, stdin) = split_percent(rest.trim());
    if command.is_empty() {
        return Err("it has no command".to_owned());
    }
    // TZ is the command's own: crons that know a zone for their times read it from CRON_TZ alone.
    let zone = env.get("CRON_TZ").filter(|zone| !zone.is_empty()).cloned();
    let env = env.iter().filter(|(name, _)| *name != "CRON_TZ").map(|(name, value)| (name.clone(), value.clone()));
    Ok(Command { rule, zone, user, command, stdin, env: env.collect() })
}

/// The first `count` words, with one space between them, and what follows.
fn fields(line: &str, count: usize) -> Result<(String, &str), String> {
    let mut words = Vec::with_capacity(count);
    let mut rest = line.trim_start();
    for _ in 0..count {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if word.is_empty() {
            return Err(format!("it has {} fields and no command", words.len()));
        }
        words.push(word);
        rest = after.trim_start();
    }
    Ok((words.join(" "), rest))
}

/// The first `%` ends the command; what follows is its standard input, each further one a line's end. `\%` is one that is meant.
fn split_percent(text: &str) -> (String, Option<String>) {
    let (mut parts, mut part) = (Vec::new(), String::new());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&'%') => part.extend(chars.next()),
            '%' => parts.push(std::mem::take(&mut part)),
            c => part.push(c),
        }
    }
    parts.push(part);
    let command = parts.remove(0).trim_end().to_owned();
    let stdin = (!parts.is_empty()).then(|| parts.join("\n"));
    (command, stdin)
}

impl Command {
    /// What a worker gets: only what there is.
    pub fn payload(&self) -> Value {
        let mut payload = json!({ "command": self.command });
        if !self.env.is_empty() {
            payload["env"] = json!(self.env);
        }
        if let Some(stdin) = &self.stdin {
            payload["stdin"] = stdin.as_str().into();
        }
        if let Some(user) = &self.user {
            payload["user"] = user.as_str().into();
        }
        payload
    }

    /// A name for its schedule: its program's.
    pub fn name(&self) -> String {
        let is_assignment = |word: &&str| word.split_once('=').is_some_and(|(name, _)| !name.contains('/'));
        let program = self.command.split_whitespace().find(|word| !is_assignment(word)).unwrap_or("command");
        let base = program.trim_end_matches('/').rsplit('/').next().unwrap_or(program);
        match base.trim_matches(|c: char| !c.is_ascii_alphanumeric()) {
            "" => "command".to_owned(),
            name => name.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(text: &str, with_user: bool) -> Vec<Command> {
        let found = lines(text, with_user).into_iter();
        found.filter_map(|line| if let Line::Command(command) = line.is { Some(command) } else { None }).collect()
    }

    #[test]
    fn a_users_crontab_is_read_with_what_its_commands_get() {
        let text = "\
# m h dom mon dow command
MAILTO=ops@example.org
PATH = \"/usr/bin:/bin\"
CRON_TZ=Europe/Berlin

30 2 * * *   /opt/backup.sh --full >/dev/null 2>&1
CRON_TZ=Asia/Tokyo
@daily LANG=C mail -s hello\\%world ada%first line%second \\% line
";
        let found = commands(text, false);
        assert_eq!(found.len(), 2);
        let payload = json!({
            "command": "/opt/backup.sh --full >/dev/null 2>&1", "env": { "MAILTO": "ops@example.org", "PATH": "/usr/bin:/bin" },
        });
        assert_eq!((found[0].rule.as_str(), found[0].zone.as_deref()), ("30 2 * * *", Some("Europe/Berlin")));
        assert_eq!((found[0].payload(), found[0].name()), (payload, "backup.sh".to_owned()));
        assert_eq!((found[1].rule.as_str(), found[1].zone.as_deref()), ("@daily", Some("Asia/Tokyo")));
        assert_eq!(found[1].command, "LANG=C mail -s hello%world ada");
        assert_eq!(found[1].stdin.as_deref(), Some("first line\nsecond % line"));
        assert_eq!(found[1].name(), "mail");
    }

    #[test]
    fn tz_is_the_commands_and_says_nothing_of_their_times() {
        let found = commands("TZ=Asia/Tokyo\n0 9 * * * ./a\nCRON_TZ=Europe/Berlin\nTZ=UTC\n0 9 * * * ./b\n", false);
        let read: Vec<_> = found
            .iter()
            .map(|command| (command.zone.as_deref(), &command.payload()["env"]["TZ"] == "Asia/Tokyo"))
            .collect();
        assert_eq!(read, [(None, true), (Some("Europe/Berlin"), false)]);
        assert_eq!(found[1].payload()["env"], json!({ "TZ": "UTC" }), "CRON_TZ is cron's alone");
    }

    #[test]
    fn a_systems_crontab_names_users() {
        let text =
            "SHELL=/bin/sh\n17 *\t* * *\troot    cd / && run-parts --report /etc/cron.hourly\n@weekly www-data ./x\n";
        let found = commands(text, true);
        assert_eq!(found[0].rule, "17 * * * *");
        assert_eq!(
            (found[0].user.as_deref(), found[0].command.as_str()),
            (Some("root"), "cd / && run-parts --report /etc/cron.hourly")
        );
        assert_eq!((found[1].user.as_deref(), found[1].command.as_str()), (Some("www-data"), "./x"));
        assert_eq!(found[0].payload()["env"]["SHELL"], "/bin/sh");
    }

    #[test]
    fn what_is_no_command_says_why() {
        let why = |line: &str, with_user: bool| match lines(line, with_user).remove(0).is {
            Line::Other(why) => why,
            Line::Command(command) => panic!("{command:?}"),
            Line::Setting => panic!("{line} is no setting"),
        };
        assert!(why("@reboot /opt/start", false).contains("@reboot is no time"));
        assert!(why("30 2 * *", false).contains("4 fields"));
        assert!(why("30 2 * * *", false).contains("no command"));
        assert!(why("30 2 * * * root", true).contains("no command"));
        assert!(why("30 2 * * * % only input", false).contains("no command"));
    }

    #[test]
    fn a_command_with_an_equals_sign_is_no_setting() {
        let found = commands("* * * * * X=1 /bin/true a=b\n* * * * * [ x = x ]\n", false);
        assert_eq!(found.iter().map(Command::name).collect::<Vec<_>>(), ["true", "command"]);
    }
}
