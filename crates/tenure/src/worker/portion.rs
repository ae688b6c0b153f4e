//! How much to ask of the database at once: less after what was too much, for the same would be too much again.

/// The most jobs of one claim, or reports of one group.
pub(super) struct Portion {
    most: usize,
}

impl Default for Portion {
    fn default() -> Portion {
        Portion { most: usize::MAX }
    }
}

impl Portion {
    pub(super) fn most(&self) -> usize {
        self.most
    }

    /// So much was too much: half of it at a time from now on, and one at least.
    pub(super) fn shrink(&mut self, asked: usize) {
        self.most = self.most.min(asked / 2).max(1);
    }

    /// So much went with ease: twice as much may go.
    pub(super) fn grow(&mut self, asked: usize) {
        self.most = self.most.max(asked.saturating_mul(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_too_much_is_repeated_with_less_and_grows_again() {
        let mut portion = Portion::default();
        portion.shrink(1000);
        assert_eq!(portion.most(), 500);
        portion.grow(20);
        assert_eq!(portion.most(), 500, "little says nothing of much");
        portion.grow(500);
        assert_eq!(portion.most(), 1000);
        (1..=20).for_each(|_| portion.shrink(portion.most()));
        assert_eq!(portion.most(), 1);
    }
}
