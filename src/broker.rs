//! Who answers for users and desktops: the embedded directory.
//!
//! [`Directory`] holds the users and desktops of the configuration and, beside them, what users have changed: their
//! passwords and preferences. It may import what stands before it in the order of the house; it knows neither messages
//! nor sessions.
//!
//! What it keeps to:
//!
//! - A name that does not exist, a name that is disabled and a wrong password have one answer, and each costs one
//!   password hash. The decoy for names without a hash has the most common cost of the configured hashes: a directory
//!   whose hashes have several costs lets a patient client tell some names apart by time.
//! - Password hashes are computed off the async threads, at most one a core; the queue before them is short and nobody
//!   stands in it for long. All workers and all reloads share it.
//! - A changed password is on the disk before its user is told so. Preferences hold at once and are written soon after.
//! - A password hash that is changed in the configuration is stronger than any change that a user has made.

use std::fmt;
use std::sync::Arc;

use crate::clock;
use crate::config::{self, Config};
use crate::types::{DesktopId, Secret, UserName};

mod desktops;
mod hashing;
mod kept;
mod password;
mod preferences;
mod state_file;
mod users;

use desktops::Desktops;
use hashing::{Argon2id, Hashing};
use kept::{Kept, NotChanged};
use state_file::StateFile;
use tokio_util::sync::CancellationToken;
use users::{User, Users};

pub use desktops::Desktop;
pub use password::PasswordRefused;
pub use preferences::PreferenceFault;
pub(crate) use state_file::replace as replace_file;
pub use state_file::{StateFault, StateProblem};

/// The users and desktops of one configuration, over the state that all configurations share.
///
/// A clone is the same directory.
#[derive(Clone)]
pub struct Directory {
    users: Arc<Users>,
    desktops: Arc<Desktops>,
    kept: Arc<Kept>,
    hashing: Hashing,
}

/// What a name and a password come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// They belong together.
    Welcome,
    /// They belong together, and the user must choose another password before anything else.
    MustChange,
    /// They do not, or there is no such user.
    Wrong,
    /// Too many passwords are being checked; nothing is known of this one. The client may try again.
    Busy,
}

/// What a change of password comes to. Only after [`Changed::Done`] does the new password hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// The new password holds, over restarts too.
    Done,
    /// The old password is not the user's, or there is no such user.
    Wrong,
    /// The new password is not acceptable. The old one was not looked at.
    Refused(PasswordRefused),
    /// Too many passwords are being checked. The client may try again.
    Busy,
    /// The new password cannot be written to the disk; the log says why.
    NotKept,
}

impl Directory {
    /// The directory at the start of a node: reads `directory.json` in the state directory. A missing file is an empty
    /// one; it and the directory are made at the first write, for this user alone. Blocks on the disk.
    ///
    /// # Errors
    ///
    /// [`StateFault`] if the file is there and cannot be used; its text says what to do.
    pub fn load(config: &Config) -> Result<Self, StateFault> {
        let file = StateFile::new(config.node.state_dir.join(FILE_NAME));
        let kept = Arc::new(Kept::read(file)?);
        Ok(Self::over(&config.directory, kept, Hashing::new(Argon2id::default())))
    }

    /// The directory of another configuration over the same kept state, the same queue and the same file, so that no
    /// write in flight is lost. Another state directory counts from the next start. Does not block.
    pub fn reloaded(&self, config: &Config) -> Self {
        Self::over(&config.directory, Arc::clone(&self.kept), self.hashing.clone())
    }

    fn over(directory: &config::Directory, kept: Arc<Kept>, hashing: Hashing) -> Self {
        kept.adopt(&directory.users, clock::wall());
        Self {
            users: Arc::new(Users::new(&directory.users)),
            desktops: Arc::new(Desktops::new(&directory.desktops)),
            kept,
            hashing,
        }
    }

    /// Checks a password. Whatever the answer but [`Verdict::Busy`], one password hash was computed, unless the password
    /// is longer than any password can be.
    ///
    /// Cancel-safe: dropped, it changes nothing; a hash that is being computed keeps its place until it is done.
    pub async fn verify(&self, user: &UserName, password: &Secret) -> Verdict {
        if password::is_absurd(password) {
            return Verdict::Wrong;
        }
        let known = self.users.find(user);
        let (hash, must_change) = self.hash_of(user, known);
        match self.hashing.matches(password.clone(), hash).await {
            Ok(true) if known.is_some() && must_change => Verdict::MustChange,
            Ok(true) if known.is_some() => Verdict::Welcome,
            Ok(_) => Verdict::Wrong,
            Err(hashing::Busy) => Verdict::Busy,
        }
    }

    /// Changes a password and writes it to the disk. The new hash costs what the configured one costs.
    ///
    /// Cancel-safe: dropped, the change is made whole or not at all.
    pub async fn change_password(&self, user: &UserName, old: &Secret, new: &Secret) -> Changed {
        if let Err(refused) = password::judge(user, old, new) {
            return Changed::Refused(refused);
        }
        if password::is_absurd(old) {
            return Changed::Wrong;
        }
        let known = self.users.find(user);
        let (hash, _) = self.hash_of(user, known);
        let replacing = known.map(|known| (new.clone(), known.cost));
        let hashed = self.hashing.replace(old.clone(), hash.clone(), replacing).await;
        let (known, replacement) = match (known, hashed) {
            (_, Err(hashing::Busy)) => return Changed::Busy,
            (Some(known), Ok(Some(replacement))) => (known, replacement),
            (None, Ok(_)) | (Some(_), Ok(None)) => return Changed::Wrong,
        };
        match self.kept.change_password(user, known, hash, replacement).await {
            Ok(()) => Changed::Done,
            Err(NotChanged::Overtaken) => Changed::Wrong,
            Err(NotChanged::NotKept) => Changed::NotKept,
        }
    }

    /// Whether the user exists and is not disabled.
    pub fn knows(&self, user: &UserName) -> bool {
        self.users.find(user).is_some()
    }

    /// The desktops that the user is entitled to by name or by group, in the order of their ids. A user who is unknown
    /// or disabled has none.
    pub fn desktops_of(&self, user: &UserName) -> Vec<Arc<Desktop>> {
        match self.users.find(user) {
            Some(known) => self.desktops.of(user, &known.groups),
            None => Vec::new(),
        }
    }

    /// The desktop of that id, if the user is entitled to it.
    pub fn desktop_for(&self, user: &UserName, id: &DesktopId) -> Option<Arc<Desktop>> {
        let known = self.users.find(user)?;
        self.desktops.entitled(user, &known.groups, id)
    }

    /// What the user has chosen, in the order of the names: for one desktop, or (`None`) for all.
    pub fn preferences(&self, user: &UserName, desktop: Option<&DesktopId>) -> Vec<(String, String)> {
        match self.users.find(user) {
            Some(_) => self.kept.preferences(user, desktop),
            None => Vec::new(),
        }
    }

    /// Merges changes into what the user has chosen: all of them, or none. An empty value removes a name; of a name that
    /// occurs twice the last counts. They hold at once, and [`keep`](Self::keep) or [`flush`](Self::flush) writes them.
    ///
    /// # Errors
    ///
    /// [`PreferenceFault`] if a name or a value is not acceptable, the user would keep too much, or is not entitled.
    pub fn set_preferences(
        &self,
        user: &UserName,
        desktop: Option<&DesktopId>,
        changes: Vec<(String, String)>,
    ) -> Result<(), PreferenceFault> {
        self.users.find(user).ok_or(PreferenceFault::UnknownUser)?;
        if let Some(id) = desktop {
            self.desktop_for(user, id).ok_or(PreferenceFault::NotEntitled)?;
        }
        self.kept
            .set_preferences(user, desktop, changes, |id| self.desktops.contains(id))
    }

    /// Writes preferences soon after they change, until `stop`; then writes what is left and ends. One a node is enough:
    /// it serves every reload.
    pub fn keep(&self, stop: CancellationToken) -> impl Future<Output = ()> + Send + use<> {
        Arc::clone(&self.kept).keep(stop)
    }

    /// Writes what is not yet on the disk; returns when all that was set before the call is there.
    ///
    /// Cancel-safe: a write that has begun ends, and what is not written stays due.
    ///
    /// # Errors
    ///
    /// [`StateFault`] if the disk refuses; all stays in memory and due.
    pub async fn flush(&self) -> Result<(), StateFault> {
        self.kept.flush().await
    }

    /// The hash that decides over a user's password, and whether the password must be changed.
    fn hash_of(&self, name: &UserName, known: Option<&User>) -> (Secret, bool) {
        match known {
            Some(known) => self.kept.hash_of(name, known),
            None => (self.users.decoy(), false),
        }
    }
}

impl fmt::Debug for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Directory").finish_non_exhaustive()
    }
}

/// The file in the state directory.
const FILE_NAME: &str = "directory.json";

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::io;
    use std::path::Path;
    use std::sync::LazyLock;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    use jiff::{SignedDuration, Timestamp};
    use parking_lot::Mutex;
    use tempfile::TempDir;
    use tokio::task::yield_now;
    use tokio_util::task::TaskTracker;
    use zeroize::Zeroizing;

    use super::hashing::Hasher;
    use super::*;
    use crate::config::environment::{Contents, Environment};
    use crate::config::password::{COST, Cost, HashFailed};

    #[tokio::test]
    async fn every_name_costs_one_hash_and_every_failure_has_one_answer() {
        let world = World::new();
        let directory = world.start(&people());
        for (name, password, verdict) in [
            ("ann", OLD, Verdict::Welcome),
            ("ANN ", OLD, Verdict::Welcome),
            ("ann", NEW, Verdict::Wrong),
            ("ann", "", Verdict::Wrong),
            ("ben", OLD, Verdict::MustChange),
            ("ben", NEW, Verdict::Wrong),
            ("dis", OLD, Verdict::Wrong),
            ("nobody", OLD, Verdict::Wrong),
            ("", "", Verdict::Wrong),
        ] {
            assert_eq!(
                directory.verify(&UserName::new(name), &Secret::new(password)).await,
                verdict,
                "{name}"
            );
            assert_eq!(world.costs(), [COST], "{name}");
        }
    }

    #[tokio::test]
    async fn an_absurd_password_costs_nothing_whoever_sends_it() {
        let world = World::new();
        let directory = world.start(&people());
        let absurd = Secret::new("a".repeat(5000));
        for name in ["ann", "nobody"] {
            assert_eq!(directory.verify(&UserName::new(name), &absurd).await, Verdict::Wrong);
            let changed = directory
                .change_password(&UserName::new(name), &absurd, &Secret::new(NEW))
                .await;
            assert_eq!(changed, Changed::Wrong);
        }
        assert_eq!(world.costs(), []);
    }

    #[tokio::test]
    async fn a_changed_password_holds_over_a_restart_and_fulfils_the_demand() {
        let world = World::new();
        let directory = world.start(&people());
        assert_eq!(change(&directory, "ben", OLD, NEW).await, Changed::Done);
        for directory in [directory, world.start(&people())] {
            assert_eq!(verify(&directory, "ben", NEW).await, Verdict::Welcome);
            assert_eq!(verify(&directory, "ben", OLD).await, Verdict::Wrong);
            assert_eq!(verify(&directory, "ann", OLD).await, Verdict::Welcome);
        }
    }

    #[tokio::test]
    async fn names_do_not_differ_in_cost_before_and_after_a_change() {
        let world = World::new();
        let cost = Cost {
            memory: 12288,
            passes: 3,
            lanes: 1,
        };
        let hash = Argon2id::default().hash(&Secret::new(OLD), cost).unwrap();
        let mut people = people();
        for name in ["ann", "ben"] {
            people.users.insert(UserName::new(name), user(&hash, false));
        }
        let directory = world.start(&people);
        assert_eq!(change(&directory, "ann", OLD, NEW).await, Changed::Done);
        assert_eq!(world.costs(), [cost, cost]);
        for name in ["ann", "ben", "dis", "nobody"] {
            assert_eq!(verify(&directory, name, "not the old one").await, Verdict::Wrong);
            assert_eq!(world.costs(), [cost], "{name}");
        }
    }

    #[tokio::test]
    async fn a_change_that_fails_costs_one_hash_for_every_name() {
        let world = World::new();
        let directory = world.start(&people());
        for name in ["ann", "dis", "nobody"] {
            assert_eq!(change(&directory, name, "not the old one", NEW).await, Changed::Wrong);
            assert_eq!(world.costs(), [COST], "{name}");
        }
        assert_eq!(change(&directory, "nobody", OLD, NEW).await, Changed::Wrong);
        assert_eq!(world.costs(), [COST]);
        let refused = Changed::Refused(PasswordRefused::TooShort);
        assert_eq!(change(&directory, "ann", OLD, "short").await, refused);
        assert_eq!(change(&directory, "nobody", OLD, "short").await, refused);
        assert_eq!(world.costs(), []);
        assert!(!world.file().exists());
    }

    #[tokio::test]
    async fn a_hash_that_the_configuration_changes_wins_and_demands_again() {
        let world = World::new();
        let directory = world.start(&people());
        assert_eq!(change(&directory, "ben", OLD, NEW).await, Changed::Done);
        let mut reset = people();
        reset.users.insert(UserName::new("ben"), user(&RESET, true));
        for directory in [world.reload(&directory, &reset), world.start(&reset)] {
            assert_eq!(verify(&directory, "ben", NEW).await, Verdict::Wrong);
            assert_eq!(verify(&directory, "ben", "reset-harbor-43").await, Verdict::MustChange);
        }
    }

    #[tokio::test]
    async fn a_demand_that_is_made_after_the_change_counts() {
        let world = World::new();
        let directory = world.start(&people());
        assert_eq!(change(&directory, "ann", OLD, NEW).await, Changed::Done);
        let mut demanding = people();
        demanding.users.insert(UserName::new("ann"), user(&HASH, true));
        let demanded = world.reload(&directory, &demanding);
        assert_eq!(verify(&demanded, "ann", NEW).await, Verdict::MustChange);
        assert_eq!(change(&demanded, "ann", NEW, "third-harbor-44").await, Changed::Done);
        assert_eq!(verify(&demanded, "ann", "third-harbor-44").await, Verdict::Welcome);
        let withdrawn = world.reload(&demanded, &people());
        let again = world.reload(&withdrawn, &demanding);
        assert_eq!(verify(&again, "ann", "third-harbor-44").await, Verdict::MustChange);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn of_two_changes_at_once_one_holds() {
        let world = World::new();
        let directory = world.start(&people());
        let news = ["first-harbor-51", "other-harbor-52"];
        let (one, two) = tokio::join!(
            change(&directory, "ann", OLD, news[0]),
            change(&directory, "ann", OLD, news[1])
        );
        let winner = match (one, two) {
            (Changed::Done, Changed::Wrong) => news[0],
            (Changed::Wrong, Changed::Done) => news[1],
            other => panic!("{other:?}"),
        };
        assert_eq!(verify(&directory, "ann", winner).await, Verdict::Welcome);
        assert_eq!(verify(&world.start(&people()), "ann", winner).await, Verdict::Welcome);
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_that_the_disk_refuses_does_not_hold_and_the_rest_is_written_later() {
        let world = World::new();
        let directory = world.start(&people());
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        tasks.spawn(directory.keep(stop.clone()));
        fs::write(world.folder.path().join("state"), "in the way").unwrap();
        assert_eq!(change(&directory, "ann", OLD, NEW).await, Changed::NotKept);
        assert_eq!(verify(&directory, "ann", OLD).await, Verdict::Welcome);
        assert_eq!(verify(&directory, "ann", NEW).await, Verdict::Wrong);
        directory
            .set_preferences(&UserName::new("ann"), None, pairs(&[("a", "1")]))
            .unwrap();
        assert!(directory.flush().await.is_err());
        tokio::time::sleep(Duration::from_secs(5)).await;

        fs::remove_file(world.folder.path().join("state")).unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let started = world.start(&people());
        assert_eq!(started.preferences(&UserName::new("ann"), None), pairs(&[("a", "1")]));
        assert_eq!(verify(&started, "ann", OLD).await, Verdict::Welcome);
        stop.cancel();
        tasks.close();
        tasks.wait().await;
    }

    #[tokio::test]
    async fn a_change_whose_client_hangs_up_is_made_whole_or_not_at_all() {
        let world = World::new();
        let tasks = TaskTracker::new();
        let stages: [fn(&World) -> bool; 4] = [
            |_| true,
            |world| world.computed.lock().len() == 1,
            |world| world.computed.lock().len() == 2,
            |world| world.file().exists(),
        ];
        for reached in stages {
            let directory = world.start(&people());
            let hasty = directory.clone();
            let task = tasks.spawn(async move { change(&hasty, "ann", OLD, NEW).await });
            while !reached(&world) {
                yield_now().await;
            }
            task.abort();
            let _ = task.await;
            // A write that has begun has the disk.
            directory.flush().await.unwrap();
            let in_memory = [
                verify(&directory, "ann", OLD).await,
                verify(&directory, "ann", NEW).await,
            ];
            let started = world.start(&people());
            let on_disk = [verify(&started, "ann", OLD).await, verify(&started, "ann", NEW).await];
            assert!(in_memory.contains(&Verdict::Welcome) && in_memory.contains(&Verdict::Wrong));
            assert_eq!(in_memory, on_disk);
            world.costs();
        }
    }

    #[tokio::test]
    async fn a_write_in_flight_outlives_a_reload() {
        let world = World::new();
        let before = world.start(&people());
        let after = world.reload(&before, &people());
        let ann = UserName::new("ann");
        assert_eq!(change(&before, "ann", OLD, NEW).await, Changed::Done);
        before.set_preferences(&ann, None, pairs(&[("a", "1")])).unwrap();
        after.set_preferences(&ann, None, pairs(&[("b", "2")])).unwrap();
        assert_eq!(verify(&after, "ann", NEW).await, Verdict::Welcome);
        after.flush().await.unwrap();
        let started = world.start(&people());
        assert_eq!(started.preferences(&ann, None), pairs(&[("a", "1"), ("b", "2")]));
        assert_eq!(verify(&started, "ann", NEW).await, Verdict::Welcome);
    }

    #[tokio::test]
    async fn unknown_and_disabled_users_have_no_desktop_and_no_preference() {
        let world = World::new();
        let directory = world.start(&people());
        let office = DesktopId::new("office");
        for name in ["dis", "nobody"] {
            let user = UserName::new(name);
            assert_eq!(directory.desktops_of(&user), []);
            assert_eq!(directory.desktop_for(&user, &office), None);
            let refused = directory.set_preferences(&user, None, pairs(&[("a", "1")]));
            assert_eq!(refused, Err(PreferenceFault::UnknownUser));
        }
        let ann = UserName::new("ann");
        assert_eq!(
            directory.desktops_of(&ann),
            [directory.desktop_for(&ann, &office).unwrap()]
        );
        for id in ["vault", "missing"] {
            let id = DesktopId::new(id);
            assert_eq!(directory.desktop_for(&ann, &id), None);
            let refused = directory.set_preferences(&ann, Some(&id), pairs(&[("a", "1")]));
            assert_eq!(refused, Err(PreferenceFault::NotEntitled));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn preferences_hold_at_once_and_are_written_soon_after() {
        let world = World::new();
        let directory = world.start(&people());
        let tasks = TaskTracker::new();
        let stop = CancellationToken::new();
        tasks.spawn(directory.keep(stop.clone()));
        let (ann, office) = (UserName::new("ann"), DesktopId::new("office"));
        directory
            .set_preferences(&ann, Some(&office), pairs(&[("screenSize", "Full")]))
            .unwrap();
        assert_eq!(
            directory.preferences(&ann, Some(&office)),
            pairs(&[("screenSize", "Full")])
        );
        yield_now().await;
        assert!(!world.file().exists());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let started = world.start(&people());
        assert_eq!(
            started.preferences(&ann, Some(&office)),
            pairs(&[("screenSize", "Full")])
        );

        directory
            .set_preferences(&ann, None, pairs(&[("last", "words")]))
            .unwrap();
        stop.cancel();
        tasks.close();
        tasks.wait().await;
        assert_eq!(
            world.start(&people()).preferences(&ann, None),
            pairs(&[("last", "words")])
        );
    }

    #[tokio::test]
    async fn what_changes_nothing_is_not_written() {
        let world = World::new();
        let directory = world.start(&people());
        let ann = UserName::new("ann");
        directory.set_preferences(&ann, None, pairs(&[("a", "1")])).unwrap();
        directory.flush().await.unwrap();
        fs::remove_file(world.file()).unwrap();
        directory
            .set_preferences(&ann, None, pairs(&[("a", "1"), ("b", "")]))
            .unwrap();
        world.reload(&directory, &people()).flush().await.unwrap();
        assert!(!world.file().exists());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn writers_at_once_leave_a_whole_file_with_the_last_word_of_each() {
        let world = World::new();
        let mut many = people();
        for n in 0..16 {
            many.users
                .insert(UserName::new(&format!("user{n}")), user(&HASH, false));
        }
        let directory = world.start(&many);
        let tasks = TaskTracker::new();
        for n in 0..16 {
            let directory = directory.clone();
            tasks.spawn(async move {
                let name = UserName::new(&format!("user{n}"));
                for round in 0..20 {
                    let change = pairs(&[("round", &round.to_string())]);
                    directory.set_preferences(&name, None, change).unwrap();
                    directory.flush().await.unwrap();
                }
                let mut changed = Changed::Busy;
                // As many at once may be more than a slow machine hashes within a client's patience.
                while changed == Changed::Busy {
                    changed = change(&directory, name.as_str(), OLD, NEW).await;
                }
                assert_eq!(changed, Changed::Done);
            });
        }
        tasks.close();
        let reading = Arc::new(AtomicBool::new(true));
        let reader = {
            let (reading, file) = (Arc::clone(&reading), world.file());
            tokio::task::spawn_blocking(move || {
                let mut whole = 0;
                while reading.load(Ordering::SeqCst) {
                    if let Ok(bytes) = fs::read(&file) {
                        serde_json::from_slice::<serde_json::Value>(&bytes).unwrap();
                        whole += 1;
                    }
                }
                whole
            })
        };
        tasks.wait().await;
        reading.store(false, Ordering::SeqCst);
        assert!(reader.await.unwrap() > 0);
        let started = world.start(&many);
        for n in 0..16 {
            let name = format!("user{n}");
            assert_eq!(
                started.preferences(&UserName::new(&name), None),
                pairs(&[("round", "19")])
            );
            assert_eq!(verify(&started, &name, NEW).await, Verdict::Welcome);
        }
    }

    #[test]
    fn one_queue_serves_the_runtimes_of_all_workers() {
        let world = World::new();
        let directory = world.start(&people());
        let welcome = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .enable_all()
                        .build()
                        .unwrap();
                    for _ in 0..3 {
                        if runtime.block_on(verify(&directory, "ann", OLD)) == Verdict::Welcome {
                            welcome.fetch_add(1, Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        assert_eq!(welcome.into_inner(), 12);
        assert_eq!(world.costs().len(), 12);
    }

    #[tokio::test]
    async fn who_is_not_configured_is_remembered_for_a_month() {
        let world = World::new();
        let directory = world.start(&people());
        let ann = UserName::new("ann");
        assert_eq!(change(&directory, "ann", OLD, NEW).await, Changed::Done);
        let nobody = BTreeMap::new();
        let start: Timestamp = clock::wall();
        let day = |day: i64| start + SignedDuration::from_hours(24 * day);

        directory.kept.adopt(&nobody, day(0));
        directory.kept.adopt(&nobody, day(29));
        directory.flush().await.unwrap();
        let back = world.start(&people());
        assert_eq!(verify(&back, "ann", NEW).await, Verdict::Welcome);

        back.kept.adopt(&people().users, day(40));
        back.kept.adopt(&nobody, day(60));
        back.kept.adopt(&nobody, day(89));
        assert_eq!(verify(&back, "ann", NEW).await, Verdict::Welcome);
        back.kept.adopt(&nobody, day(91));
        assert_eq!(verify(&back, "ann", OLD).await, Verdict::Welcome);
        back.flush().await.unwrap();
        assert!(!fs::read_to_string(world.file()).unwrap().contains(ann.as_str()));
    }

    #[tokio::test]
    async fn a_directory_is_loaded_from_the_state_directory_or_refused() {
        let world = World::new();
        let config = config_at(&world.folder.path().join("state"));
        let directory = Directory::load(&config).unwrap();
        let ann = UserName::new("ann");
        directory.set_preferences(&ann, None, pairs(&[("a", "1")])).unwrap();
        directory.reloaded(&config).flush().await.unwrap();
        assert_eq!(
            Directory::load(&config).unwrap().preferences(&ann, None),
            pairs(&[("a", "1")])
        );

        fs::write(world.file(), "{").unwrap();
        let fault = Directory::load(&config).unwrap_err();
        assert_eq!(fault.path, world.file());
        assert!(matches!(fault.problem, StateProblem::Damaged { .. }), "{fault}");
    }

    #[tokio::test]
    async fn the_file_gives_no_configured_hash_and_no_password_away() {
        let world = World::new();
        let directory = world.start(&people());
        assert_eq!(change(&directory, "ben", OLD, NEW).await, Changed::Done);
        let text = fs::read_to_string(world.file()).unwrap();
        for secret in [OLD, NEW, HASH.expose()] {
            assert!(!text.contains(secret), "{text}");
        }
        assert_eq!(format!("{directory:?}"), "Directory { .. }");
    }

    const OLD: &str = "plum-harbor-41";
    const NEW: &str = "quince-harbor-42";
    static HASH: LazyLock<Secret> = LazyLock::new(|| config::password::hash(&Secret::new(OLD)).unwrap());
    static RESET: LazyLock<Secret> = LazyLock::new(|| config::password::hash(&Secret::new("reset-harbor-43")).unwrap());

    /// A disk, and a hasher whose hashes are counted.
    struct World {
        folder: TempDir,
        computed: Arc<Mutex<Vec<Cost>>>,
    }

    struct Counted(Arc<Mutex<Vec<Cost>>>);

    impl Hasher for Counted {
        fn matches(&self, password: &Secret, hash: &Secret) -> Result<bool, HashFailed> {
            self.0.lock().push(config::password::judge(hash.expose()).unwrap());
            Argon2id::default().matches(password, hash)
        }

        fn hash(&self, password: &Secret, cost: Cost) -> Result<Secret, HashFailed> {
            self.0.lock().push(cost);
            Argon2id::default().hash(password, cost)
        }
    }

    impl World {
        fn new() -> Self {
            Self {
                folder: TempDir::new().unwrap(),
                computed: Arc::default(),
            }
        }

        fn start(&self, directory: &config::Directory) -> Directory {
            let kept = Kept::read(StateFile::new(self.file())).unwrap();
            let hasher = Counted(Arc::clone(&self.computed));
            Directory::over(directory, Arc::new(kept), Hashing::new(hasher))
        }

        fn reload(&self, running: &Directory, directory: &config::Directory) -> Directory {
            let mut config = config_at(self.folder.path());
            config.directory = directory.clone();
            running.reloaded(&config)
        }

        fn file(&self) -> std::path::PathBuf {
            self.folder.path().join("state").join(FILE_NAME)
        }

        /// What was computed since the last call.
        fn costs(&self) -> Vec<Cost> {
            std::mem::take(&mut self.computed.lock())
        }
    }

    fn people() -> config::Directory {
        let disabled = config::User {
            disabled: true,
            ..user(&HASH, false)
        };
        let desktop = |users: &[&str]| config::Desktop {
            name: "Desktop".to_owned(),
            protocols: Vec::new(),
            users: users.iter().map(|name| UserName::new(name)).collect(),
            groups: Vec::new(),
            max_sessions: None,
            agent: config::Agent::System,
        };
        config::Directory {
            users: BTreeMap::from([
                (UserName::new("ann"), user(&HASH, false)),
                (UserName::new("ben"), user(&HASH, true)),
                (UserName::new("dis"), disabled),
            ]),
            desktops: BTreeMap::from([
                (DesktopId::new("office"), desktop(&["ann", "dis", "nobody"])),
                (DesktopId::new("vault"), desktop(&["ben"])),
            ]),
        }
    }

    fn user(hash: &Secret, must_change_password: bool) -> config::User {
        config::User {
            password_hash: hash.clone(),
            groups: Vec::new(),
            disabled: false,
            must_change_password,
        }
    }

    fn config_at(state_dir: &Path) -> Config {
        let text = format!(
            "node = {{ name = \"gw-1\", state_dir = {state_dir:?} }}\n\
             certificate.main = {{ chain = \"chain.pem\", key = \"key.pem\" }}\n\
             listener.main = {{ bind = [\"127.0.0.1:0\"], certificates = [\"main\"] }}\n"
        );
        let parsed = config::parse(&text, Path::new("/etc/portcullis.toml"), &AnyFile);
        let mut config = parsed.unwrap_or_else(|faults| panic!("{faults}")).0;
        config.directory = people();
        config
    }

    /// A world in which every file is there.
    struct AnyFile;

    impl Environment for AnyFile {
        fn variable(&self, _: &str) -> Option<Zeroizing<String>> {
            None
        }

        fn read(&self, _: &Path, _: u64) -> io::Result<Contents> {
            Ok(Contents {
                bytes: Zeroizing::new(b"anything".to_vec()),
                mode: 0o600,
            })
        }
    }

    async fn verify(directory: &Directory, name: &str, password: &str) -> Verdict {
        directory.verify(&UserName::new(name), &Secret::new(password)).await
    }

    async fn change(directory: &Directory, name: &str, old: &str, new: &str) -> Changed {
        directory
            .change_password(&UserName::new(name), &Secret::new(old), &Secret::new(new))
            .await
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }
}
