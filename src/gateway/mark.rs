//! The answer to a marked request: who has it from two addresses knows whether they lead to one node.

use std::fmt;

use aws_lc_rs::hmac;

use crate::grant::{Randomness as _, SystemRandomness};
use crate::types::{Mark, MarkAnswer};

/// The key of this process under which marks are answered. It is drawn at start and never leaves.
pub(super) struct MarkKey(hmac::Key);

impl MarkKey {
    pub(super) fn draw() -> Self {
        let mut key = [0; 32];
        SystemRandomness.fill(&mut key);
        Self(hmac::Key::new(hmac::HMAC_SHA256, &key))
    }

    pub(super) fn answer(&self, mark: Mark) -> MarkAnswer {
        let tag = hmac::sign(&self.0, &mark.octets());
        let mut octets = [0; 8];
        for (octet, of_tag) in octets.iter_mut().zip(tag.as_ref()) {
            *octet = *of_tag;
        }
        MarkAnswer::from_octets(octets)
    }
}

impl fmt::Debug for MarkKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MarkKey(…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_answers_the_same_and_another_one_otherwise() {
        let (one, other, mark) = (MarkKey::draw(), MarkKey::draw(), Mark::from_random(7));
        assert_eq!(one.answer(mark), one.answer(mark));
        assert_ne!(one.answer(mark), other.answer(mark));
        assert_ne!(one.answer(mark), one.answer(Mark::from_random(8)));
    }
}
