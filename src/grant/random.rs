//! Where secrets come from.

use aws_lc_rs::rand;

/// A source of random bytes.
pub trait Randomness: Send + Sync {
    /// Fills `bytes`.
    fn fill(&self, bytes: &mut [u8]);
}

/// The randomness of the operating system, through AWS-LC.
#[derive(Clone, Copy, Debug)]
pub struct SystemRandomness;

impl Randomness for SystemRandomness {
    fn fill(&self, bytes: &mut [u8]) {
        #[expect(
            clippy::expect_used,
            reason = "AWS-LC's RAND_bytes ends the process itself when there is no entropy"
        )]
        rand::fill(bytes).expect("RAND_bytes returns 1 or not at all");
    }
}
