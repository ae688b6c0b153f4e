//! Commands of pg_cron that do nothing but enqueue a job of plain values: only of those a schedule says the same.

use tenure::{JobOptions, RawJson};

/// Names of the parameters of `enqueue`, in their order.
const PARAMETERS: [&str; 8] =
    ["p_kind", "p_payload", "p_queue", "p_priority", "p_run_at", "p_delay_ms", "p_max_attempts", "p_timeout_ms"];

/// What a command enqueues.
#[derive(Debug)]
pub struct Call {
    pub kind: String,
    pub payload: RawJson,
    pub options: JobOptions,
}

/// A piece of SQL.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// Lower case.
    Word(String),
    Text(String),
    Number(String),
    Sign(&'static str),
}

/// A plain value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Literal {
    Null,
    Text(String),
    Number(String),
}

/// Reads `select SCHEMA.enqueue(…)`. Why not: in words, for whoever wants to move it.
pub fn read(command: &str, schema: &str) -> Result<Call, String> {
    let command = command.trim().trim_end_matches(';');
    let tokens = tokens(command)?;
    let head = [
        Token::Word("select".into()),
        Token::Word(schema.into()),
        Token::Sign("."),
        Token::Word("enqueue".into()),
        Token::Sign("("),
    ];
    let Some(rest) = tokens.strip_prefix(&head[..]) else {
        return Err(format!("it is more or other than `select {schema}.enqueue(…)`"));
    };
    let Some(arguments) = rest.strip_suffix(&[Token::Sign(")")]) else {
        return Err("it does more than enqueue one job".to_owned());
    };
    call(values(arguments)?)
}

/// Does it fire schedules where no worker is up? It is no schedule itself, and is to stay.
pub fn is_tick(command: &str, schema: &str) -> bool {
    let compact: String = command.trim().trim_end_matches(';').split_whitespace().collect();
    compact.to_ascii_lowercase() == format!("select{schema}.tick()")
}

/// pg_cron's `30 seconds` as a rule, and its `$` for the last day of a month.
pub fn rule(schedule: &str) -> String {
    let words: Vec<&str> = schedule.split_whitespace().collect();
    match words[..] {
        [n, "second" | "seconds"] if n.bytes().all(|byte| byte.is_ascii_digit()) => format!("@every {n}s"),
        [minute, hour, "$", month, day] => format!("{minute} {hour} L {month} {day}"),
        _ => schedule.trim().to_owned(),
    }
}

/// The arguments by the parameters' order.
fn values(tokens: &[Token]) -> Result<[Option<Literal>; 8], String> {
    let mut values: [Option<Literal>; 8] = Default::default();
    for (n, argument) in tokens.split(|token| *token == Token::Sign(",")).enumerate() {
        let (place, value) = match argument {
            [Token::Word(name), Token::Sign("=>" | ":="), value @ ..] => {
                let place = PARAMETERS.iter().position(|known| *known == name.as_str());
                (place.ok_or_else(|| format!("enqueue has no parameter {name}"))?, value)
            }
            value => (n, value),
        };
        let slot = values.get_mut(place).ok_or("it has more arguments than enqueue")?;
        if slot.replace(literal(value)?).is_some() {
            return Err(format!("it names {} twice", PARAMETERS[place]));
        }
    }
    Ok(values)
}

/// A value, with or without a cast that changes nothing of it.
fn literal(tokens: &[Token]) -> Result<Literal, String> {
    let (value, cast) = match tokens {
        [value] => (value, None),
        [value, Token::Sign("::"), Token::Word(cast)] => (value, Some(cast.as_str())),
        _ => return Err("a value of it is computed when it runs".to_owned()),
    };
    match (value, cast) {
        (Token::Text(text), None | Some("json" | "jsonb" | "text")) => Ok(Literal::Text(text.clone())),
        (Token::Number(number), None | Some("bigint" | "integer" | "int" | "smallint")) => {
            Ok(Literal::Number(number.clone()))
        }
        (Token::Word(word), _) if word == "null" => Ok(Literal::Null),
        (_, Some(cast)) => Err(format!("a value of it is cast to {cast}")),
        (_, None) => Err("a value of it is computed when it runs".to_owned()),
    }
}

fn call(values: [Option<Literal>; 8]) -> Result<Call, String> {
    let [kind, payload, queue, priority, run_at, delay, attempts, timeout] =
        values.map(|value| value.filter(|value| *value != Literal::Null));
    if run_at.is_some() || delay.is_some() {
        return Err("its jobs wait for a time of their own; give the schedule a jitter or another time".to_owned());
    }
    let text = |value: Option<Literal>, what: &str| match value {
        Some(Literal::Text(text)) => Ok(Some(text)),
        None => Ok(None),
        Some(other) => Err(format!("{what} is {other:?} and no text")),
    };
    let kind = text(kind, "p_kind")?.ok_or("it names no kind")?;
    let payload = text(payload, "p_payload")?.ok_or("it has no payload")?;
    let payload = RawJson::parse(payload).map_err(|error| format!("its payload: {error}"))?;
    let mut options = JobOptions::new();
    if let Some(queue) = text(queue, "p_queue")? {
        options = options.queue(queue);
    }
    if let Some(priority) = number(priority, "p_priority")? {
        options = options.priority(priority);
    }
    if let Some(attempts) = number(attempts, "p_max_attempts")? {
        options = options.max_attempts(attempts);
    }
    if let Some(ms) = number::<u64>(timeout, "p_timeout_ms")? {
        options = options.timeout(std::time::Duration::from_millis(ms));
    }
    Ok(Call { kind, payload, options })
}

fn number<T: std::str::FromStr>(value: Option<Literal>, what: &str) -> Result<Option<T>, String> {
    match value {
        Some(Literal::Number(text) | Literal::Text(text)) => {
            text.parse().map(Some).map_err(|_| format!("{what} is {text:?}, which is out of range"))
        }
        Some(Literal::Null) | None => Ok(None),
    }
}

/// The pieces of a command; what is left of SQL is not understood, and so not moved.
fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(c) = rest.chars().next() {
        let (token, length) = match c {
            '\'' => quoted(rest)?,
            '$' => dollar_quoted(rest)?,
            'a'..='z' | 'A'..='Z' | '_' => word(rest)?,
            '0'..='9' => {
                let length = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
                (Token::Number(rest[..length].to_owned()), length)
            }
            c => sign(rest).ok_or_else(|| format!("{c:?} in it is more than plain values"))?,
        };
        tokens.push(token);
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn word(rest: &str) -> Result<(Token, usize), String> {
    let length = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len());
    match rest[length..].starts_with('\'') {
        true => Err(format!("a text in it is written as {}'…'", &rest[..length])),
        false => Ok((Token::Word(rest[..length].to_ascii_lowercase()), length)),
    }
}

fn sign(rest: &str) -> Option<(Token, usize)> {
    let signs = ["=>", ":=", "::", ".", ",", "(", ")"];
    signs.into_iter().find(|sign| rest.starts_with(sign)).map(|sign| (Token::Sign(sign), sign.len()))
}

/// `'it''s'`
fn quoted(rest: &str) -> Result<(Token, usize), String> {
    let mut text = String::new();
    let mut chars = rest.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if chars.peek().is_some_and(|(_, next)| *next == '\'') => {
                chars.next();
                text.push('\'');
            }
            '\'' => return Ok((Token::Text(text), at + 1)),
            c => text.push(c),
        }
    }
    Err("a quote in it stays open".to_owned())
}

/// `$$it's$$`, `$a$…$a$`
fn dollar_quoted(rest: &str) -> Result<(Token, usize), String> {
    let open = || "a quote in it stays open".to_owned();
    let end = rest[1..].find('$').ok_or_else(open)? + 2;
    let tag = &rest[..end];
    let close = rest[end..].find(tag).ok_or_else(open)?;
    Ok((Token::Text(rest[end..end + close].to_owned()), end + close + end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_calls_say_what_a_schedule_says() {
        let check = |command: &str, kind: &str, payload: &str, options: JobOptions| {
            let call = read(command, "tenure").unwrap_or_else(|why| panic!("{command}: {why}"));
            assert_eq!((call.kind.as_str(), call.payload.get(), call.options), (kind, payload, options), "{command}");
        };
        check("select tenure.enqueue('k', '{}')", "k", "{}", JobOptions::new());
        check(
            "  SELECT\ntenure.enqueue('it''s', '{\"a\": 1}'::jsonb, 'slow', 1);",
            "it's",
            "{\"a\": 1}",
            JobOptions::new().queue("slow").priority(1),
        );
        check(
            "select tenure.enqueue(p_kind => 'k', p_payload := $x$\"'\"$x$::json, p_max_attempts => 3, p_timeout_ms => 5000)",
            "k",
            "\"'\"",
            JobOptions::new().max_attempts(3).timeout(std::time::Duration::from_secs(5)),
        );
        check("select tenure.enqueue('k', $$[]$$, p_queue => null)", "k", "[]", JobOptions::new());
        assert_eq!(read("select jobs.enqueue('k', '1')", "jobs").expect("a call").kind, "k");
    }

    #[test]
    fn everything_else_stays_and_says_why() {
        let check = |command: &str, part: &str| {
            let why = read(command, "tenure").expect_err(command);
            assert!(why.contains(part), "{command}: {why}");
        };
        check("vacuum", "more or other than");
        check("select tenure.enqueue('k', json_build_object('day', current_date))", "computed when it runs");
        check("select tenure.enqueue('k', '{}', p_run_at => now())", "computed when it runs");
        check("select tenure.enqueue('k', '{}', p_delay_ms => 500)", "a time of their own");
        check("select tenure.enqueue('k', '{}') from t", "more than enqueue one job");
        check("select tenure.enqueue('k', '{}'); select 1", "\';\' in it is more");
        check("select tenure.enqueue('k', '{}'), tenure.enqueue('l', '{}')", "computed");
        check("select tenure.enqueue(e'k', '{}')", "written as e'…'");
        check("select tenure.enqueue('k')", "no payload");
        check("select tenure.enqueue('k', 'x')", "its payload");
        check("select tenure.enqueue('k', '{}'::xml)", "cast to xml");
        check("select tenure.enqueue('k', '{}', p_quue => 'x')", "no parameter p_quue");
        check("select tenure.enqueue('k', '{}', p_kind => 'x')", "p_kind twice");
        check("select tenure.enqueue('k', '{}', 'q', 999999)", "out of range");
        check("select tenure.enqueue('k', '{}", "stays open");
    }

    #[test]
    fn what_calls_tick_and_nothing_else_is_known() {
        for command in ["select tenure.tick()", " SELECT tenure.tick ( ) ;"] {
            assert!(is_tick(command, "tenure") && !is_tick(command, "jobs"), "{command}");
        }
        assert!(!is_tick("select tenure.tick(), 1", "tenure"));
    }

    #[test]
    fn what_pg_cron_adds_to_cron_lines_is_understood() {
        assert_eq!(rule("30 seconds"), "@every 30s");
        assert_eq!(rule("0 3 $ * *"), "0 3 L * *");
        assert_eq!(rule(" 0 3 * * 1 "), "0 3 * * 1");
    }
}
