use std::fmt;

use bytes::{BufMut, BytesMut};
use postgres_types::{FromSql, IsNull, ToSql, Type, accepts, to_sql_checked};

use super::JobId;
use super::limits::BLOCK_JOBS;

/// Which jobs of a block are meant: bit n stands for job `block * 128 + n`, as `get_bit` numbers a `bit(128)`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mask(u128);

impl Mask {
    /// No job.
    pub const EMPTY: Mask = Mask(0);

    /// One job.
    ///
    /// # Panics
    /// Here and below: when the slot is not under 128.
    pub fn of(slot: u8) -> Self {
        Mask(bit(slot))
    }

    /// Is the job in this slot meant?
    pub fn get(self, slot: u8) -> bool {
        self.0 & bit(slot) != 0
    }

    /// Adds a slot.
    pub fn set(&mut self, slot: u8) {
        self.0 |= bit(slot);
    }

    /// Takes a slot away.
    pub fn unset(&mut self, slot: u8) {
        self.0 &= !bit(slot);
    }

    /// Number of slots in it, 0 to 128.
    pub fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// No slot in it?
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The slots in both.
    pub fn and(self, other: Mask) -> Mask {
        Mask(self.0 & other.0)
    }

    /// The slots in either.
    pub fn or(self, other: Mask) -> Mask {
        Mask(self.0 | other.0)
    }

    /// The slots in this one and not in the other.
    pub fn without(self, other: Mask) -> Mask {
        Mask(self.0 & !other.0)
    }

    /// Its slots in ascending order.
    pub fn iter(self) -> impl Iterator<Item = u8> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let slot = rest.leading_zeros();
            (slot < 128).then(|| {
                rest &= !(TOP >> slot);
                slot as u8
            })
        })
    }

    /// The jobs it means in `block`, in ascending order.
    pub fn jobs(self, block: i64) -> impl Iterator<Item = JobId> {
        self.iter().map(move |slot| JobId::in_block(block, slot))
    }
}

const TOP: u128 = 1 << 127;

fn bit(slot: u8) -> u128 {
    assert!(usize::from(slot) < BLOCK_JOBS, "slot {slot} is not below {BLOCK_JOBS}");
    TOP >> slot
}

impl FromIterator<u8> for Mask {
    fn from_iter<I: IntoIterator<Item = u8>>(slots: I) -> Self {
        let mut mask = Mask::EMPTY;
        slots.into_iter().for_each(|slot| mask.set(slot));
        mask
    }
}

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mask({:032x})", self.0)
    }
}

// bit(128) on the wire: the number of bits as int32, then the bits from the left.
impl ToSql for Mask {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.put_i32(BLOCK_JOBS as i32);
        out.put_u128(self.0);
        Ok(IsNull::No)
    }

    accepts!(BIT, VARBIT);
    to_sql_checked!();
}

impl<'a> FromSql<'a> for Mask {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn std::error::Error + Sync + Send>> {
        let (bits, bytes) = raw.split_at_checked(4).ok_or("a bit string without its length")?;
        let bits = i32::from_be_bytes(bits.try_into()?);
        match <[u8; 16]>::try_from(bytes) {
            Ok(bytes) if bits == BLOCK_JOBS as i32 => Ok(Mask(u128::from_be_bytes(bytes))),
            Ok(_) | Err(_) => Err(format!("a mask has {BLOCK_JOBS} bits, not {bits}").into()),
        }
    }

    accepts!(BIT, VARBIT);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn bit_zero_is_the_leftmost_on_the_wire() {
        let mut out = BytesMut::new();
        Mask::from_iter([0, 9, 127]).to_sql(&Type::BIT, &mut out).unwrap();
        assert_eq!(out[..4], [0, 0, 0, 128]);
        assert_eq!(out[4..6], [0b1000_0000, 0b0100_0000]);
        assert_eq!(out[19], 1);
    }

    #[test]
    fn a_bit_string_of_another_width_is_refused() {
        assert!(Mask::from_sql(&Type::BIT, &[0, 0, 0, 8, 255]).is_err());
        assert!(Mask::from_sql(&Type::BIT, &[0, 0]).is_err());
    }

    proptest! {
        #[test]
        fn a_mask_is_a_set_of_slots(slots: BTreeSet<u8>, others: BTreeSet<u8>) {
            let keep = |set: BTreeSet<u8>| set.into_iter().filter(|slot| *slot < 128).collect::<BTreeSet<u8>>();
            let (slots, others) = (keep(slots), keep(others));
            let (mask, other) = (Mask::from_iter(slots.clone()), Mask::from_iter(others.clone()));
            prop_assert_eq!(mask.count(), slots.len());
            prop_assert_eq!(mask.iter().collect::<Vec<_>>(), slots.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(mask.and(other).iter().collect::<BTreeSet<_>>(), &slots & &others);
            prop_assert_eq!(mask.or(other).iter().collect::<BTreeSet<_>>(), &slots | &others);
            prop_assert_eq!(mask.without(other).iter().collect::<BTreeSet<_>>(), &slots - &others);
            for slot in 0..128 { prop_assert_eq!(mask.get(slot), slots.contains(&slot)); }
        }

        #[test]
        fn a_mask_survives_the_wire(bits: u128) {
            let mut out = BytesMut::new();
            Mask(bits).to_sql(&Type::BIT, &mut out).unwrap();
            prop_assert_eq!(Mask::from_sql(&Type::BIT, &out).unwrap(), Mask(bits));
        }
    }
}
