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

    /// Leaves as much of what is wanted as one call may bring, from any place on, so that none is left out for ever.
    pub(super) fn limit(&self, wants: &mut [i32]) {
        if self.most == usize::MAX || wants.is_empty() {
            return;
        }
        let (mut left, first) = (i32::try_from(self.most).unwrap_or(i32::MAX), fastrand::usize(..wants.len()));
        for place in 0..wants.len() {
            let want = &mut wants[(first + place) % wants.len()];
            *want = (*want).min(left);
            left -= *want;
        }
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
        let limited = |portion: &Portion, mut wants: Vec<i32>| {
            portion.limit(&mut wants);
            wants
        };
        assert_eq!(limited(&portion, vec![1000, 7]), [1000, 7]);
        portion.shrink(1000);
        assert_eq!(limited(&portion, vec![1000]), [500]);
        assert_eq!(limited(&portion, vec![400, 400]).iter().sum::<i32>(), 500);
        portion.grow(20);
        assert_eq!(limited(&portion, vec![1000]), [500], "little says nothing of much");
        portion.grow(500);
        assert_eq!(limited(&portion, vec![1000]), [1000]);
        (1..=20).for_each(|_| portion.shrink(portion.most()));
        assert_eq!(limited(&portion, vec![1000]), [1]);
    }
}
