//! Text that the database can store, whatever it was before.

use std::borrow::Cow;

/// The text with NUL replaced, and cut to `bytes_max` on a character's edge with a note of how long it was.
///
/// An error text must never be the reason that a job cannot end.
pub(crate) fn storable(text: &str, bytes_max: usize) -> Cow<'_, str> {
    let clean = match text.contains('\0') {
        true => Cow::Owned(text.replace('\0', "\u{fffd}")),
        false => Cow::Borrowed(text),
    };
    if clean.len() <= bytes_max {
        return clean;
    }
    let note = format!("… (cut, {} bytes)", clean.len());
    let end = clean.floor_char_boundary(bytes_max.saturating_sub(note.len()));
    Cow::Owned(format!("{}{note}", &clean[..end]))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn short_text_stays_and_long_text_says_that_it_was_cut() {
        assert_eq!(storable("as it was", 100), "as it was");
        assert_eq!(storable("a\0b", 100), "a\u{fffd}b");
        assert_eq!(storable(&"é".repeat(50), 40), format!("{}… (cut, 100 bytes)", "é".repeat(10)));
    }

    proptest! {
        #[test]
        fn stored_text_fits_and_holds_no_nul(text: String, bytes_max in 32_usize..200) {
            let stored = storable(&text, bytes_max);
            prop_assert!(stored.len() <= bytes_max);
            prop_assert!(!stored.contains('\0'));
        }
    }
}
