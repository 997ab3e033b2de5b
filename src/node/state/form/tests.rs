use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::authenticate::Authenticated;
use crate::config;
use crate::fault::CloseReason;
use crate::grant::Store;
use crate::node::handover::Inheritance;

const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const LIFETIME: Duration = Duration::from_secs(3600);
const IDLE: Duration = Duration::from_secs(600);

fn store() -> Store {
    let limits = config::Session {
        lifetime: LIFETIME,
        idle: Some(IDLE),
        heartbeat: Duration::from_secs(60),
        login_timeout: Duration::from_secs(300),
        first_use: Duration::from_secs(60),
        max: 99,
        per_user: 99,
        connections: 9,
    };
    Store::new("gw-1".parse().unwrap(), None, limits)
}

fn identity() -> Identity {
    Identity {
        node: "gw-1".to_owned(),
        keys: Inheritance::default().keys,
        boot: "one".to_owned(),
    }
}

fn secret() -> Secret {
    Secret::new("a key of more than thirty-two characters")
}

fn at(up: u64) -> Moment {
    Moment {
        up,
        wall: i64::try_from(up).unwrap() + 1_000_000,
    }
}

/// What happens to a session.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begins,
    Changes(usize),
    Used(usize),
    Ends(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => Just(Step::Begins),
        2 => any::<usize>().prop_map(Step::Changes),
        2 => any::<usize>().prop_map(Step::Used),
        3 => any::<usize>().prop_map(Step::Ends),
    ]
}

/// Files that processes have written one after the other, each beside the former, and what of it all was said when.
struct Written {
    files: Vec<Vec<u8>>,
    identity_ends: usize,
    /// Of the file in which it is noted: where its record ends.
    ends: Vec<(String, usize, usize)>,
    begun: Vec<(String, usize, usize)>,
}

/// The steps as processes write them; a handover comes after each `span` of them. An end is written after a look that was
/// taken before it, as threads may have it.
fn written(steps: &[Step], span: usize) -> Written {
    let (store, now) = (store(), clock::now());
    let mut all = Written {
        files: Vec::new(),
        identity_ends: 0,
        ends: Vec::new(),
        begun: Vec::new(),
    };
    let mut ids: Vec<SessionId> = Vec::new();
    let mut up = 0;
    for steps in steps.chunks(span) {
        let mut sealer = Sealer::begin(&secret()).unwrap();
        let mut file = sealer.head().to_vec();
        file.extend(sealer.seal(&identity()).unwrap());
        all.identity_ends = file.len();
        let number = all.files.len();
        let lives = store
            .snapshot(now)
            .into_iter()
            .map(|grant| Kept { grant, cookie: None });
        let first = Batch {
            at: at(up),
            grants: lives.collect(),
            ..Batch::default()
        };
        file.extend(sealer.seal(&first).unwrap());
        for step in steps {
            up += 7;
            let mut batch = Batch {
                at: at(up),
                ..Batch::default()
            };
            let pick = |n: usize| ids.get(n % ids.len().max(1)).copied();
            let look = |id: SessionId| {
                let grant = store.snapshot_of(id, now)?;
                Some(Kept { grant, cookie: None })
            };
            match *step {
                Step::Begins => {
                    let grant = store.mint(Authenticated::for_test("ann", CLIENT, now), now).unwrap();
                    ids.push(grant.id());
                    batch.grants.extend(look(grant.id()));
                }
                Step::Changes(n) => batch.grants.extend(pick(n).and_then(look)),
                Step::Used(n) => batch.used.extend(pick(n).and_then(|id| store.use_of(id, now))),
                Step::Ends(n) => {
                    let late = pick(n).and_then(look);
                    if let Some(id) = pick(n)
                        && store.revoke(id, CloseReason::Logout)
                    {
                        batch.ended.push(id.to_string());
                        file.extend(sealer.seal(&batch).unwrap());
                        all.ends.push((id.to_string(), number, file.len()));
                        batch = Batch {
                            at: at(up),
                            grants: late.into_iter().collect(),
                            ..Batch::default()
                        };
                    }
                }
            }
            let begins = batch.grants.first().and_then(|kept| kept.grant.id());
            file.extend(sealer.seal(&batch).unwrap());
            if let (Step::Begins, Some(id)) = (step, begins) {
                all.begun.push((id.to_string(), number, file.len()));
            }
        }
        all.files.push(file);
    }
    all
}

fn restored(files: &[&[u8]]) -> Result<BTreeSet<String>, Unreadable> {
    let mut batches = Vec::new();
    for file in files {
        batches.extend(read(file, &secret())?.1);
    }
    let alive = Replay::of(batches).alive(at(1_000), true).unwrap();
    Ok(alive.iter().map(|kept| kept.grant.id().unwrap().to_string()).collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn wherever_the_last_file_is_cut_no_ended_session_lives_and_no_other_is_missing(
        steps in proptest::collection::vec(step(), 1..24), span in 1_usize..24, cuts in proptest::collection::vec(any::<prop::sample::Index>(), 40),
    ) {
        let all = written(&steps, span);
        let (last, before) = all.files.split_last().unwrap();
        let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(last.len() + 1)).collect();
        places.extend([0, last.len()]);
        for cut in places {
            let mut files: Vec<_> = before.iter().map(Vec::as_slice).collect();
            files.push(&last[..cut]);
            let Ok(alive) = restored(&files) else {
                // That much is on the disk before it has its name.
                prop_assert!(cut < all.identity_ends);
                continue;
            };
            let is_there = |(_, number, end): &&(String, usize, usize)| *number < before.len() || *end <= cut;
            let ended: BTreeSet<_> = all.ends.iter().filter(is_there).map(|(id, ..)| id.clone()).collect();
            let begun: BTreeSet<_> = all.begun.iter().filter(is_there).map(|(id, ..)| id.clone()).collect();
            prop_assert_eq!(alive.intersection(&ended).next(), None);
            for id in begun.difference(&ended) {
                prop_assert!(alive.contains(id));
            }
        }
    }

    #[test]
    fn whatever_octet_is_altered_nothing_counts(
        steps in proptest::collection::vec(step(), 1..8), places in proptest::collection::vec((any::<prop::sample::Index>(), 1_u8..), 40),
    ) {
        let all = written(&steps, usize::MAX);
        let file = &all.files[0];
        for (place, by) in places {
            let mut altered = file.clone();
            altered[place.index(file.len())] ^= by;
            prop_assert!(read(&altered, &secret()).is_err(), "at {}", place.index(file.len()));
        }
    }

    #[test]
    fn no_octets_panic_the_reader(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
        let begun = Sealer::begin(&secret()).unwrap();
        prop_assert!(read(&octets, &secret()).is_err());
        prop_assert!(read(&[begun.head(), &octets].concat(), &secret()).is_err());
    }
}

#[test]
fn a_record_of_another_place_or_file_does_not_count() {
    let [one, other] = [(); 2].map(|()| {
        let mut sealer = Sealer::begin(&secret()).unwrap();
        let mut parts = vec![sealer.head().to_vec(), sealer.seal(&identity()).unwrap()];
        parts.extend((0..2).map(|up| {
            let ended = vec![format!("{up}")];
            let batch = Batch {
                at: at(up),
                ended,
                ..Batch::default()
            };
            sealer.seal(&batch).unwrap()
        }));
        parts
    });
    assert!(read(&one.concat(), &secret()).is_ok());
    let swapped = [&*one[0], &*one[1], &*one[3], &*one[2]].concat();
    assert!(matches!(read(&swapped, &secret()), Err(Unreadable::Damaged(_))));
    let foreign = [&*one[0], &*one[1], &*other[2]].concat();
    assert!(matches!(read(&foreign, &secret()), Err(Unreadable::Damaged(_))));
    let text = Secret::new("another key of more than thirty-two characters");
    assert_eq!(read(&one.concat(), &text), Err(Unreadable::Key));
    let mut later = one.concat();
    later[MAGIC.len() + 3] = 2;
    assert_eq!(read(&later, &secret()), Err(Unreadable::Version(2)));
    assert_eq!(
        read(b"{\"users\":{}}, and much more of it than a head has", &secret()),
        Err(Unreadable::Foreign)
    );
}

#[test]
fn no_secret_stands_in_the_file() {
    let (store, now) = (store(), clock::now());
    let grant = store
        .mint(Authenticated::for_test("ann-of-the-lab", CLIENT, now), now)
        .unwrap();
    let cookie = Some(Octets32([0xab; 32]));
    let kept = Kept {
        grant: store.snapshot_of(grant.id(), now).unwrap(),
        cookie,
    };
    let mut sealer = Sealer::begin(&secret()).unwrap();
    let sealed = sealer
        .seal(&Batch {
            grants: vec![kept],
            ..Batch::default()
        })
        .unwrap();
    let text = String::from_utf8_lossy(&sealed);
    for word in ["ann", "abab", "secret", "grant", &grant.id().to_string()] {
        assert!(!text.contains(word), "{word}");
    }
}

/// What is left of one session of [`LIFETIME`], looked at in `looked`, used in `used`.
fn left(looked: u64, used: Option<u64>, last: Moment, now: Moment, same_boot: bool) -> Result<bool, SetBack> {
    let (old, began) = (store(), clock::now());
    let grant = old.mint(Authenticated::for_test("ann", CLIENT, began), began).unwrap();
    let kept = Kept {
        grant: old.snapshot_of(grant.id(), began).unwrap(),
        cookie: None,
    };
    let mut batches = vec![Batch {
        at: at(looked),
        grants: vec![kept],
        ..Batch::default()
    }];
    batches.extend(used.map(|up| {
        let passed = began + Duration::from_millis(up - looked);
        grant.touch(passed);
        Batch {
            at: at(up),
            used: old.use_of(grant.id(), passed).into_iter().collect(),
            ..Batch::default()
        }
    }));
    batches.push(Batch {
        at: last,
        ..Batch::default()
    });
    let alive = Replay::of(batches).alive(now, same_boot)?;
    let (new, moment) = (store(), clock::now());
    Ok(new.restore(&[alive[0].grant.clone()], moment, moment) == 1)
}

#[test]
fn time_that_passes_while_nobody_runs_counts() {
    let minutes = |m: u64| m * 60_000;
    // Used after nine minutes; ten without use end it.
    let used = Some(minutes(9));
    assert_eq!(left(0, used, at(minutes(9)), at(minutes(18)), true), Ok(true));
    assert_eq!(left(0, used, at(minutes(9)), at(minutes(20)), true), Ok(false));
    assert_eq!(left(0, None, at(minutes(9)), at(minutes(11)), true), Ok(false));
    // After another start of the system only the day's clock knows.
    let restarted = |wall: i64| Moment { up: 5, wall };
    assert_eq!(
        left(0, used, at(minutes(9)), restarted(at(minutes(18)).wall), false),
        Ok(true)
    );
    assert_eq!(
        left(0, used, at(minutes(9)), restarted(at(minutes(20)).wall), false),
        Ok(false)
    );
}

#[test]
fn a_clock_that_is_set_back_makes_nothing_longer() {
    let minutes = |m: u64| m * 60_000;
    // In the same life of the system the day's clock is not asked.
    let set_back = Moment {
        up: minutes(20),
        wall: 0,
    };
    assert_eq!(left(0, Some(minutes(9)), at(minutes(9)), set_back, true), Ok(false));
    let ahead = Moment {
        up: minutes(18),
        wall: i64::MAX,
    };
    assert_eq!(left(0, Some(minutes(9)), at(minutes(9)), ahead, true), Ok(true));
    // Over a start of the system, it must not stand before what was written last.
    assert_eq!(
        left(0, Some(minutes(9)), at(minutes(9)), Moment { up: 5, wall: 0 }, false),
        Err(SetBack)
    );
    // Set back while the node ran: the time before that was measured otherwise.
    let last = Moment {
        up: minutes(9),
        wall: 0,
    };
    let soon = Moment {
        up: 5,
        wall: i64::try_from(minutes(11)).unwrap(),
    };
    assert_eq!(left(0, Some(minutes(9)), last, soon, false), Ok(false));
}
