//! Password hashes off the async threads: one a core at a time, a bounded queue before them.

use std::num::NonZero;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use argon2::password_hash::PasswordHasher;
use argon2::password_hash::phc::{Output, PasswordHash, Salt};
use argon2::{Algorithm, Argon2, Block, Params, Version};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use zeroize::Zeroizing;

use crate::config::password::{Cost, HashFailed};
use crate::types::Secret;

/// How passwords are hashed. Both block for tens of milliseconds, and each computes exactly one hash.
pub(super) trait Hasher: Send + Sync + 'static {
    /// Whether the password opens the hash.
    fn matches(&self, password: &Secret, hash: &Secret) -> Result<bool, HashFailed>;

    /// A hash of the password under a fresh salt.
    fn hash(&self, password: &Secret, cost: Cost) -> Result<Secret, HashFailed>;

    /// Nobody waits: lets go of what was kept for the next hash.
    fn rest(&self) {}
}

/// argon2id of version 19.
///
/// The memory of a hash is 19 MiB at the usual cost, and the system clears each of its pages at the first touch. It is kept
/// for the next hash as long as someone waits for one, at most once for each turn.
#[derive(Default)]
pub(super) struct Argon2id {
    spare: Mutex<Vec<Vec<Block>>>,
}

impl Argon2id {
    /// What the password becomes under that salt.
    fn output(&self, argon2: &Argon2<'_>, password: &Secret, salt: &Salt, length: usize) -> Option<Output> {
        let mut memory = self.spare.lock().pop().unwrap_or_default();
        memory.resize(argon2.params().block_count(), Block::new());
        let mut bytes = Zeroizing::new([0; Output::MAX_LENGTH]);
        let bytes = bytes.get_mut(..length)?;
        let done = argon2.hash_password_into_with_memory(password.expose().as_bytes(), salt, bytes, &mut memory);
        self.spare.lock().push(memory);
        done.ok()?;
        Output::new(bytes).ok()
    }
}

impl Hasher for Argon2id {
    fn matches(&self, password: &Secret, hash: &Secret) -> Result<bool, HashFailed> {
        let hash = PasswordHash::new(hash.expose()).map_err(|_| HashFailed)?;
        // The cost is taken from the hash, not from the default.
        let params = Params::try_from(&hash).map_err(|_| HashFailed)?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let (Some(salt), Some(expected)) = (hash.salt, hash.hash) else {
            return Err(HashFailed);
        };
        let output = self
            .output(&argon2, password, &salt, expected.len())
            .ok_or(HashFailed)?;
        // Outputs are compared in constant time.
        Ok(output == expected)
    }

    fn hash(&self, password: &Secret, cost: Cost) -> Result<Secret, HashFailed> {
        let params = Params::new(cost.memory, cost.passes, cost.lanes, None).map_err(|_| HashFailed)?;
        let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
        let hash = argon2
            .hash_password(password.expose().as_bytes())
            .map_err(|_| HashFailed)?;
        Ok(Secret::new(hash.to_string()))
    }

    fn rest(&self) {
        *self.spare.lock() = Vec::new();
    }
}

/// The hasher and the queue before it. A clone is the same queue.
#[derive(Clone)]
pub(super) struct Hashing {
    hasher: Arc<dyn Hasher>,
    /// Places of those who compute or wait.
    places: Arc<Semaphore>,
    /// How many places there are.
    all: usize,
    /// Turns of those who compute.
    turns: Arc<Semaphore>,
}

/// No hash was computed, or none in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Busy;

impl Hashing {
    /// A queue of as many turns as the machine has cores.
    pub(super) fn new(hasher: impl Hasher) -> Self {
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Self::with_turns(hasher, cores)
    }

    pub(super) fn with_turns(hasher: impl Hasher, turns: usize) -> Self {
        let all = turns * (1 + WAITING);
        Self {
            hasher: Arc::new(hasher),
            places: Arc::new(Semaphore::new(all)),
            all,
            turns: Arc::new(Semaphore::new(turns)),
        }
    }

    /// Whether the password opens the hash.
    pub(super) async fn matches(&self, password: Secret, hash: Secret) -> Result<bool, Busy> {
        self.run(move |hasher| hasher.matches(&password, &hash)).await
    }

    /// The hash of `new`, if `old` opens the hash. Without `new` there is none, for the same price as for a wrong `old`.
    pub(super) async fn replace(
        &self,
        old: Secret,
        hash: Secret,
        new: Option<(Secret, Cost)>,
    ) -> Result<Option<Secret>, Busy> {
        self.run(move |hasher| {
            let opens = hasher.matches(&old, &hash)?;
            new.filter(|_| opens)
                .map(|(new, cost)| hasher.hash(&new, cost))
                .transpose()
        })
        .await
    }

    /// Runs `work` when its turn comes. The turn is given back when `work` is done, not when the caller has gone: a
    /// client that hangs up does not make room for another hash beside its own.
    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Hasher) -> Result<T, HashFailed> + Send + 'static,
    ) -> Result<T, Busy> {
        let place = Arc::clone(&self.places).try_acquire_owned().map_err(|_| Busy)?;
        let turn = timeout(PATIENCE, Arc::clone(&self.turns).acquire_owned()).await;
        let turn = turn.map_err(|_| Busy)?.map_err(|_| Busy)?;
        let (hasher, places, all) = (Arc::clone(&self.hasher), Arc::clone(&self.places), self.all);
        let worked = spawn_blocking(move || {
            // The place is free when the turn is: whoever has the turn is not counted beside the one before.
            let held = (place, turn);
            let done = work(&*hasher);
            drop(held);
            if places.available_permits() == all {
                hasher.rest();
            }
            done
        });
        match worked.await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(fault)) => {
                tracing::error!(%fault, "a password hash could not be computed");
                Err(Busy)
            }
            Err(fault) => {
                tracing::error!(%fault, "a password hash was given up");
                Err(Busy)
            }
        }
    }
}

/// Those who may wait for each turn: what one core works off within [`PATIENCE`] at the usual cost of a hash.
const WAITING: usize = 100;
/// How long anyone waits for a turn. Clients give a sign-in up after some ten seconds.
const PATIENCE: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use parking_lot::{Condvar, Mutex};
    use tokio::task::yield_now;

    use super::*;

    /// Computes nothing, and not before it may.
    #[derive(Default)]
    struct Gate {
        open: Mutex<bool>,
        opened: Condvar,
        inside: AtomicUsize,
        most_inside: AtomicUsize,
        rests: AtomicUsize,
    }

    /// The test's hold on a gate: when the test ends, however it ends, no hash is left waiting.
    struct Held(Arc<Gate>);

    impl Drop for Held {
        fn drop(&mut self) {
            self.0.open();
        }
    }

    impl Gate {
        fn held() -> (Held, Arc<Self>) {
            let gate = Arc::new(Self::default());
            (Held(Arc::clone(&gate)), gate)
        }

        fn pass(&self) {
            let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
            self.most_inside.fetch_max(inside, Ordering::SeqCst);
            let mut open = self.open.lock();
            self.opened.wait_while(&mut open, |open| !*open);
            self.inside.fetch_sub(1, Ordering::SeqCst);
        }

        fn open(&self) {
            *self.open.lock() = true;
            self.opened.notify_all();
        }
    }

    impl Hasher for Arc<Gate> {
        fn matches(&self, _: &Secret, _: &Secret) -> Result<bool, HashFailed> {
            self.pass();
            Ok(true)
        }

        fn hash(&self, _: &Secret, _: Cost) -> Result<Secret, HashFailed> {
            Err(HashFailed)
        }

        fn rest(&self) {
            self.rests.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn checked(hashing: Hashing) -> Result<bool, Busy> {
        hashing.matches(Secret::new("password"), Secret::new("hash")).await
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_turn_beyond_patience() {
        let (_held, gate) = Gate::held();
        let hashing = Hashing::with_turns(Arc::clone(&gate), 1);
        let tasks = tokio_util::task::TaskTracker::new();
        let first = tasks.spawn(checked(hashing.clone()));
        let second = tasks.spawn(checked(hashing.clone()));
        yield_now().await;
        tokio::time::advance(PATIENCE + Duration::from_millis(1)).await;
        yield_now().await;
        assert!(second.is_finished() && !first.is_finished());
        gate.open();
        assert_eq!(second.await.unwrap(), Err(Busy));
        assert_eq!(first.await.unwrap(), Ok(true));
        assert_eq!(checked(hashing).await, Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_queue_is_busy_at_once() {
        let (_held, gate) = Gate::held();
        let hashing = Hashing::with_turns(Arc::clone(&gate), 2);
        let tasks = tokio_util::task::TaskTracker::new();
        let queued: Vec<_> = (0..2 * (1 + WAITING))
            .map(|_| tasks.spawn(checked(hashing.clone())))
            .collect();
        while hashing.places.available_permits() > 0 {
            yield_now().await;
        }
        let before = tokio::time::Instant::now();
        assert_eq!(checked(hashing.clone()).await, Err(Busy));
        assert_eq!(before.elapsed(), Duration::ZERO);
        gate.open();
        for task in queued {
            assert_eq!(task.await.unwrap(), Ok(true));
        }
        assert!(gate.most_inside.load(Ordering::SeqCst) <= 2);
    }

    #[tokio::test(start_paused = true)]
    async fn who_hangs_up_keeps_the_turn_until_the_hash_is_done() {
        let (_held, gate) = Gate::held();
        let hashing = Hashing::with_turns(Arc::clone(&gate), 1);
        let tasks = tokio_util::task::TaskTracker::new();
        let gone = tasks.spawn(checked(hashing.clone()));
        yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(hashing.turns.available_permits(), 0);
        gate.open();
        assert_eq!(checked(hashing.clone()).await, Ok(true));
        assert_eq!(hashing.places.available_permits(), 1 + WAITING);
    }

    #[tokio::test(start_paused = true)]
    async fn who_hangs_up_in_the_queue_leaves_it() {
        let (_held, gate) = Gate::held();
        let hashing = Hashing::with_turns(Arc::clone(&gate), 1);
        let tasks = tokio_util::task::TaskTracker::new();
        let first = tasks.spawn(checked(hashing.clone()));
        let gone = tasks.spawn(checked(hashing.clone()));
        yield_now().await;
        gone.abort();
        assert!(gone.await.unwrap_err().is_cancelled());
        assert_eq!(hashing.places.available_permits(), WAITING);
        gate.open();
        assert_eq!(first.await.unwrap(), Ok(true));
    }

    #[tokio::test(start_paused = true)]
    async fn the_hasher_rests_when_nobody_waits_any_more() {
        let (_held, gate) = Gate::held();
        let hashing = Hashing::with_turns(Arc::clone(&gate), 1);
        let tasks = tokio_util::task::TaskTracker::new();
        let queued = [(); 3].map(|()| tasks.spawn(checked(hashing.clone())));
        while hashing.places.available_permits() > WAITING - 2 {
            yield_now().await;
        }
        gate.open();
        for task in queued {
            assert_eq!(task.await.unwrap(), Ok(true));
        }
        assert_eq!(gate.rests.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn the_memory_of_a_hash_serves_the_next_one_until_the_hasher_rests() {
        let argon2id = Argon2id::default();
        let cost = |memory, passes| Cost {
            memory,
            passes,
            lanes: 1,
        };
        for cost in [cost(7168, 5), cost(12288, 3), cost(7168, 5)] {
            let hash = argon2id.hash(&Secret::new("plum-harbor-41"), cost).unwrap();
            assert_eq!(argon2id.matches(&Secret::new("plum-harbor-41"), &hash), Ok(true));
            assert_eq!(argon2id.matches(&Secret::new("plum-harbor-42"), &hash), Ok(false));
            assert_eq!(argon2id.spare.lock().len(), 1);
        }
        argon2id.rest();
        assert!(argon2id.spare.lock().is_empty());
    }

    #[tokio::test]
    async fn a_hash_that_cannot_be_computed_is_neither_right_nor_wrong() {
        let hashing = Hashing::new(Argon2id::default());
        let matched = hashing.matches(Secret::new("password"), Secret::new("not a hash"));
        assert_eq!(matched.await, Err(Busy));
    }

    #[test]
    fn a_new_hash_has_the_cost_that_was_asked_for() {
        let cost = Cost {
            memory: 12288,
            passes: 3,
            lanes: 1,
        };
        let hash = Argon2id::default().hash(&Secret::new("plum-harbor-41"), cost).unwrap();
        assert_eq!(crate::config::password::judge(hash.expose()), Ok(cost));
    }
}
