use std::fmt;

use bytes::{BufMut, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};
use serde::de::{self, DeserializeOwned, Deserializer};
use serde::ser::{self, Serializer};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::limits::JSON_DEPTH_MAX;
use crate::Error;

/// A JSON value as its text, checked once and passed through unparsed.
///
/// Holds what PostgreSQL can also take apart: no `\u0000`, no half of a surrogate pair, at most 127 levels of nesting.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct RawJson(Box<str>);

impl RawJson {
    /// The value `null`.
    pub fn null() -> Self {
        RawJson("null".into())
    }

    /// Checks a text.
    ///
    /// # Errors
    /// `BadInput`: not JSON (with line and column), or JSON that PostgreSQL cannot take apart (with the path in it).
    pub fn parse(text: impl Into<String>) -> Result<Self, Error> {
        let raw = RawValue::from_string(text.into()).map_err(|error| {
            Error::bad_input(format!("this is not JSON: {error}"), "give one JSON value, with double quotes")
        })?;
        RawJson::checked(raw.into())
    }

    /// The JSON of a value.
    ///
    /// # Errors
    /// `BadInput`: the value has no JSON form (a map whose keys are not strings), or one with U+0000 in it.
    pub fn of(value: &(impl Serialize + ?Sized)) -> Result<Self, Error> {
        let text = serde_json::to_string(value).map_err(|error| {
            Error::bad_input(format!("this value has no JSON form: {error}"), "change its Serialize implementation")
        })?;
        RawJson::checked(text.into())
    }

    fn checked(text: Box<str>) -> Result<Self, Error> {
        match first_fault(&text) {
            None => Ok(RawJson(text)),
            Some(Fault { what, path, deep: true }) => Err(Error::bad_input(
                format!("{what} at {path} in the JSON value"),
                "make it flatter, or pass the inner part as a string",
            )),
            Some(Fault { what, path, deep: false }) => Err(Error::bad_input(
                format!("{what} at {path} in the JSON value, which PostgreSQL cannot store as text"),
                "remove it, or encode the bytes, for example in base64",
            )),
        }
    }

    /// The text.
    pub fn get(&self) -> &str {
        &self.0
    }

    /// Reads it into a type.
    ///
    /// # Errors
    /// The serde_json error's text when the JSON does not fit the type.
    pub fn decode<T: DeserializeOwned>(&self) -> Result<T, Error> {
        serde_json::from_str(&self.0).map_err(|error| {
            Error::new(
                crate::ErrorCode::BadInput,
                format!("the JSON does not fit {}: {error}", std::any::type_name::<T>()),
            )
        })
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let raw: &RawValue = serde_json::from_str(&self.0).map_err(ser::Error::custom)?;
        raw.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        RawJson::checked(raw.into()).map_err(de::Error::custom)
    }
}

impl ToSql for RawJson {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        if *ty == Type::JSONB {
            out.put_u8(1); // the version of jsonb's binary form
        }
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    accepts!(JSON, JSONB);
    to_sql_checked!();
}

// The database stores only JSON, so its text is taken as it is.
impl<'a> FromSql<'a> for RawJson {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let text = match (*ty == Type::JSONB, raw) {
            (false, text) => text,
            (true, [1, text @ ..]) => text,
            (true, _) => return Err("jsonb in an unknown binary form".into()),
        };
        Ok(RawJson(std::str::from_utf8(text)?.into()))
    }

    accepts!(JSON, JSONB);
}

struct Fault {
    what: String,
    path: String,
    /// It is the nesting.
    deep: bool,
}

/// The first thing in a valid JSON text that PostgreSQL or serde_json's typed reader would refuse later.
fn first_fault(text: &str) -> Option<Fault> {
    let mut scan = Scan { bytes: text.as_bytes(), at: 0, path: Vec::new() };
    while let Some(byte) = scan.bytes.get(scan.at) {
        let what = match byte {
            b'"' => scan.string(),
            b'{' | b'[' => scan.open(*byte),
            b'}' | b']' => scan.close(),
            b',' => scan.next_member(),
            _ => None,
        };
        if let Some(what) = what {
            return Some(Fault { what, path: scan.path_text(), deep: scan.path.len() > JSON_DEPTH_MAX });
        }
        scan.at += 1;
    }
    None
}

/// Walks over a text that is known to be JSON and remembers where it is.
struct Scan<'a> {
    bytes: &'a [u8],
    at: usize,
    path: Vec<Place<'a>>,
}

enum Place<'a> {
    /// In an object, at a key; none before the first string of a member.
    Key(Option<&'a [u8]>),
    Index(usize),
}

impl<'a> Scan<'a> {
    fn open(&mut self, byte: u8) -> Option<String> {
        self.path.push(if byte == b'{' { Place::Key(None) } else { Place::Index(0) });
        (self.path.len() > JSON_DEPTH_MAX).then(|| format!("more than {JSON_DEPTH_MAX} levels of nesting"))
    }

    fn close(&mut self) -> Option<String> {
        self.path.pop();
        None
    }

    fn next_member(&mut self) -> Option<String> {
        match self.path.last_mut() {
            Some(Place::Key(key)) => *key = None,
            Some(Place::Index(index)) => *index += 1,
            None => {}
        }
        None
    }

    /// From the opening quote to the closing one.
    fn string(&mut self) -> Option<String> {
        let start = self.at + 1;
        let mut fault = None;
        let mut at = start;
        while self.bytes[at] != b'"' {
            if self.bytes[at] != b'\\' {
                at += 1;
                continue;
            }
            let (next, found) = escape(self.bytes, at);
            fault = fault.or(found);
            at = next;
        }
        self.at = at;
        if let Some(Place::Key(key @ None)) = self.path.last_mut() {
            *key = Some(&self.bytes[start..at]);
        }
        fault
    }

    fn path_text(&self) -> String {
        // Enough to find the place; a path of a hundred levels helps nobody.
        const PLACES_SHOWN_MAX: usize = 16;
        let mut text = String::from("$");
        for place in self.path.iter().take(PLACES_SHOWN_MAX) {
            match place {
                Place::Key(Some(key)) => text.push_str(&format!(".{}", String::from_utf8_lossy(key))),
                Place::Key(None) => {}
                Place::Index(index) => text.push_str(&format!("[{index}]")),
            }
        }
        if self.path.len() > PLACES_SHOWN_MAX {
            text.push('…');
        }
        text
    }
}

/// The place after the escape that starts at `at`, and what is wrong with it.
fn escape(bytes: &[u8], at: usize) -> (usize, Option<String>) {
    match unit(bytes, at) {
        None => (at + 2, None),
        Some(0) => (at + 6, Some("\\u0000".to_owned())),
        Some(high @ 0xd800..=0xdbff) => match unit(bytes, at + 6) {
            Some(0xdc00..=0xdfff) => (at + 12, None),
            Some(_) | None => (at + 6, Some(format!("the lone surrogate \\u{high:04x}"))),
        },
        Some(low @ 0xdc00..=0xdfff) => (at + 6, Some(format!("the lone surrogate \\u{low:04x}"))),
        Some(_) => (at + 6, None),
    }
}

/// The value of `\uXXXX` at `at`, when one stands there.
fn unit(bytes: &[u8], at: usize) -> Option<u16> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_postgresql_cannot_take_apart_is_refused_with_its_path() {
        let check = |text: &str, part: &str| {
            let error = RawJson::parse(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        };
        check(r#"{"a":{"b":[1,"x\u0000y"]}}"#, r"\u0000 at $.a.b[1] in the JSON value");
        check(r#"{"a":1,"b\u0000":2}"#, r"\u0000 at $.b\u0000");
        check(r#""\ud800""#, r"the lone surrogate \ud800 at $ ");
        check(r#"["\\\udc00"]"#, r"the lone surrogate \udc00 at $[0]");
        check(r#"["\ud83dx"]"#, r"the lone surrogate \ud83d at $[0]");
        check("{'a':1}", "this is not JSON: key must be a string at line 1 column 2");
        check("", "this is not JSON");
        check("1 2", "this is not JSON");
        check(&format!("{}{}", "[".repeat(128), "]".repeat(128)), "make it flatter");
    }

    #[test]
    fn everything_else_passes_as_it_was_written() {
        let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
        for text in [r#""\ud83d\ude00""#, r#""\\u0000""#, r#"{ "a" : 1.0e400, "a" : "\"" }"#, "null", "[]", &deep] {
            assert_eq!(RawJson::parse(text).unwrap().get(), text);
        }
        assert!(RawJson::of(&json!({"nul": "\0"})).unwrap_err().to_string().contains("$.nul"));
        let json = RawJson::parse(r#"{"a": 1}"#).unwrap();
        assert_eq!(serde_json::to_string(&vec![json]).unwrap(), r#"[{"a": 1}]"#);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from)
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((".*", inner), 0..4).prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_value_without_nul_always_passes(value in any_json()) {
            let text = value.to_string();
            prop_assert_eq!(RawJson::of(&value).is_ok(), !text.replace(r"\\", "").contains(r"\u0000"));
        }
    }
}
