//! Results in a form that the database can store, whatever the handler returned. A job whose work is done must end.

use serde::Serialize;
use serde_json::{Value, json};

use crate::model::RawJson;
use crate::model::limits::RESULT_BYTES_MAX;

/// What is kept of a result that is too long.
const KEPT_BYTES: usize = 1024;

/// The JSON of a result; none for `null`. What cannot be stored is stored marked: `{"sanitised": why, "value": …}`.
pub(super) fn stored_form(result: &(impl Serialize + ?Sized)) -> Option<RawJson> {
    match serde_json::to_string(result) {
        Ok(text) if text == "null" => None,
        Ok(text) => Some(storable_result(text)),
        Err(error) => Some(marked(&format!("it has no JSON form: {error}"), Value::Null)),
    }
}

/// The same for JSON text, or what should be JSON.
pub(super) fn storable_result(text: String) -> RawJson {
    if text.len() > RESULT_BYTES_MAX {
        let why = format!("it has {} bytes, more than {RESULT_BYTES_MAX}", text.len());
        return marked(&why, json!(&text[..text.floor_char_boundary(KEPT_BYTES)]));
    }
    match RawJson::parse(text.as_str()) {
        Ok(json) => json,
        Err(error) => {
            let value = match serde_json::from_str(&text) {
                Ok(value) => without_nul(value),
                Err(_) => json!(text.replace('\0', "\u{fffd}")),
            };
            marked(error.message(), value)
        }
    }
}

/// The smallest mark, for a result that the database refused all the same.
pub(super) fn refused_result(why: &str) -> RawJson {
    marked(why, Value::Null)
}

fn marked(why: &str, value: Value) -> RawJson {
    RawJson::of(&json!({ "sanitised": why, "value": value }))
        .or_else(|_| RawJson::of(&json!({ "sanitised": "it cannot be stored" })))
        .unwrap_or_else(|_| RawJson::null())
}

fn without_nul(value: Value) -> Value {
    let clean = |text: String| text.replace('\0', "\u{fffd}");
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(values) => values.into_iter().map(without_nul).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (clean(name), without_nul(value))).collect(),
        other @ (Value::Null | Value::Bool(_) | Value::Number(_)) => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_result_is_stored_as_it_is() {
        assert_eq!(
            stored_form(&json!({"n": 18446744073709551615_u64})).expect("some").get(),
            r#"{"n":18446744073709551615}"#
        );
        assert_eq!(stored_form(&()), None);
    }

    #[test]
    fn a_result_that_cannot_be_stored_is_marked_and_readable() {
        let stored = stored_form(&json!({"a\0": ["b\0c"]})).expect("some");
        let stored: Value = stored.decode().expect("JSON");
        assert_eq!(stored["value"], json!({"a\u{fffd}": ["b\u{fffd}c"]}));
        let long: Value = stored_form(&"é".repeat(RESULT_BYTES_MAX)).expect("some").decode().expect("JSON");
        assert!(long["sanitised"].as_str().expect("why").contains("more than"));
        assert!(long["value"].as_str().expect("start").len() <= KEPT_BYTES);
    }

    #[test]
    fn text_that_is_no_json_is_kept_as_text() {
        let stored: Value = storable_result("half a \\ud800 \0".into()).decode().expect("JSON");
        assert_eq!(stored["value"], json!("half a \\ud800 \u{fffd}"));
    }
}
