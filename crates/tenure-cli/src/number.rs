//! Numbers as they are typed.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Reads a number. What is none is named with the way out: what to write, or where the number is to be found.
pub fn of<T: FromStr + 'static>(
    way_out: &'static str,
) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static {
    move |text: &str| text.parse().map_err(|_| format!("{text:?} is not such a number: {way_out}"))
}

/// Reads a number of a range; its bounds are the way out.
pub fn within<T>(range: RangeInclusive<T>) -> impl Fn(&str) -> Result<T, String> + Clone + Send + Sync + 'static
where
    T: FromStr + PartialOrd + Display + Clone + Send + Sync + 'static,
{
    move |text: &str| {
        let number = text.parse::<T>().ok().filter(|number| range.contains(number));
        number.ok_or_else(|| format!("{text:?} is not a number from {} to {}", range.start(), range.end()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_number_is_named_with_the_way_out() {
        assert_eq!(of::<i64>("write 1 to 9")("-7"), Ok(-7));
        let check = |text: &str| {
            let said = of::<i64>("write 1 to 9")(text).unwrap_err();
            assert_eq!(said, format!("{text:?} is not such a number: write 1 to 9"));
        };
        ["abc", "", "1.5", "99999999999999999999"].into_iter().for_each(check);
        assert_eq!(within(1..=16_u8)("16"), Ok(16));
        for text in ["0", "17", "300", "-1", "x"] {
            assert_eq!(within(1..=16_u8)(text), Err(format!("{text:?} is not a number from 1 to 16")));
        }
    }
}
