//! Values in the form in which PostgreSQL sends and takes them: JSON as text, sets of slots as bit strings.

use std::error::Error;

use bytes::{BufMut, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

/// JSON text for a `json` value. It is not looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JsonText<'a>(pub(crate) &'a str);

impl ToSql for JsonText<'_> {
    fn to_sql(&self, _ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for JsonText<'a> {
    fn from_sql(_ty: &Type, raw: &'a [u8]) -> Result<JsonText<'a>, Box<dyn Error + Sync + Send>> {
        Ok(JsonText(std::str::from_utf8(raw)?))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::JSON
    }
}

/// A set of slots of one lease: bit n, counted from the left, is the slot n.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Strip {
    bytes: Vec<u8>,
}

impl Strip {
    /// Jobs of one piece of a lease; a strip is a whole number of pieces long.
    pub(crate) const PIECE: u32 = 128;

    /// No slot set; long enough for `slots` slots.
    pub(crate) fn empty(slots: u32) -> Strip {
        let pieces = slots.div_ceil(Strip::PIECE) as usize;
        Strip { bytes: vec![0; pieces * Strip::PIECE as usize / 8] }
    }

    pub(crate) fn set(&mut self, slot: u32) {
        self.bytes[slot as usize / 8] |= 0x80 >> (slot % 8);
    }

    pub(crate) fn has(&self, slot: u32) -> bool {
        self.bytes.get(slot as usize / 8).is_some_and(|byte| byte & (0x80 >> (slot % 8)) != 0)
    }
}

impl ToSql for Strip {
    fn to_sql(&self, _ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        out.put_i32(i32::try_from(self.bytes.len() * 8)?);
        out.put_slice(&self.bytes);
        Ok(IsNull::No)
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::VARBIT || *ty == Type::BIT
    }

    to_sql_checked!();
}

impl<'a> FromSql<'a> for Strip {
    fn from_sql(_ty: &Type, raw: &'a [u8]) -> Result<Strip, Box<dyn Error + Sync + Send>> {
        let (bits, bytes) = raw.split_first_chunk::<4>().ok_or("a bit string without its length")?;
        if u32::from_be_bytes(*bits).div_ceil(8) != u32::try_from(bytes.len())? {
            return Err("a bit string whose length is not what it says".into());
        }
        Ok(Strip { bytes: bytes.to_vec() })
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::VARBIT || *ty == Type::BIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strip_survives_the_wire() {
        let mut strip = Strip::empty(130);
        for slot in [0, 7, 8, 127, 128, 255] {
            strip.set(slot);
        }
        let mut out = BytesMut::new();
        strip.to_sql(&Type::VARBIT, &mut out).expect("encodes");
        assert_eq!(out[..5], [0, 0, 1, 0, 0b1000_0001], "256 bits, the most significant bit first");
        let back = Strip::from_sql(&Type::VARBIT, &out).expect("decodes");
        assert_eq!(back, strip);
        assert!(back.has(127) && !back.has(126) && !back.has(5000));
    }
}
