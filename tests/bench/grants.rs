//! The grant store with a million idle grants: what a look-up costs, alone and beside a writer.
//!
//! `cargo bench --bench grants` prints the figures; `cargo bench --bench grants -- 100000` does so for another number of
//! grants. Without `--bench` (as `cargo test --all-targets` calls it) it only shows that it works.

#![allow(
    missing_docs,
    clippy::print_stdout,
    clippy::disallowed_methods,
    clippy::expect_used,
    reason = "a benchmark"
)]

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use portcullis::authenticate::{Answer, Authenticated, Chain, Decision, Verdict};
use portcullis::config;
use portcullis::fault::CloseReason;
use portcullis::grant::{Grant, Secondary, Store, Token};
use portcullis::types::{Secret, SessionId};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let measure = arguments.iter().any(|argument| argument == "--bench");
    let asked = arguments.iter().find_map(|argument| argument.parse().ok());
    let grants = asked.unwrap_or(if measure { 1_000_000 } else { 1_000 });
    let samples = if measure { 1_000_000 } else { 1_000 };

    println!(
        "one reading of the clock, included below: {}",
        Figures::of(samples, || (), |()| ())
    );
    let (store, known) = fill(grants);
    alone(&store, &known, samples);
    beside_a_writer(&store, &known, samples);
    sweeping(&store);
}

/// Mints the grants, each with a token that has been used.
fn fill(grants: usize) -> (Store, Vec<Known>) {
    let before = resident();
    let store = Store::new("gw-1".parse().expect("a name"), None, limits());
    let proofs: Vec<_> = (0..grants).map(sign_in).collect();
    let with_proofs = resident();
    let start = Instant::now();
    let known: Vec<_> = proofs
        .into_iter()
        .map(|proof| Known::mint(&store, proof, start))
        .collect();
    let each = start.elapsed() / u32::try_from(grants).unwrap_or(1);
    println!("{grants} grants: mint, announce and first admission {each:?} each");
    println!(
        "memory: {} MiB more, proofs of sign-in {} MiB",
        resident() - before,
        with_proofs - before
    );
    (store, known)
}

fn alone(store: &Store, known: &[Known], samples: usize) {
    for (of, known) in shares(known) {
        for look_up in [LookUp::Get, LookUp::Admit] {
            println!(
                "{look_up:?} of {of}, alone: {}",
                look_up.measure(store, known, samples, 1)
            );
        }
    }
    let mut dice = Dice(1);
    let own = known.first().expect("at least one").token.as_str();
    let forged = Figures::of(
        samples,
        || dice.forge(own),
        |text| store.admit(&text, Secondary::Tunnel, Instant::now()).is_err(),
    );
    println!("Admit of forged tokens, alone: {forged}");
}

/// Two readers, and a writer that makes 10,000 changes a second.
fn beside_a_writer(store: &Store, known: &[Known], samples: usize) {
    for (of, known) in shares(known) {
        for look_up in [LookUp::Get, LookUp::Admit] {
            let stop = AtomicBool::new(false);
            let (figures, changes, lasted) = std::thread::scope(|scope| {
                let writer = scope.spawn(|| write(store, &stop));
                let start = Instant::now();
                let readers: Vec<_> = (2..4)
                    .map(|seed| scope.spawn(move || look_up.measure(store, known, samples, seed)))
                    .collect();
                let figures: Vec<_> = readers
                    .into_iter()
                    .map(|reader| reader.join().expect("a reader"))
                    .collect();
                let lasted = start.elapsed();
                stop.store(true, Ordering::Relaxed);
                (figures, writer.join().expect("the writer"), lasted)
            });
            let pace = f64::from(changes) / lasted.as_secs_f64();
            for each in figures {
                println!("{look_up:?} of {of}, beside {pace:.0} changes a second: {each}");
            }
        }
    }
}

/// Those in use while the others idle, and all of them (where every look-up misses every cache).
fn shares(known: &[Known]) -> [(usize, &[Known]); 2] {
    let some = &known[..known.len().min(1_000)];
    [(some.len(), some), (known.len(), known)]
}

#[derive(Clone, Copy, Debug)]
enum LookUp {
    Get,
    Admit,
}

impl LookUp {
    fn measure(self, store: &Store, known: &[Known], samples: usize, seed: u64) -> Figures {
        let mut dice = Dice(seed);
        let now = Instant::now();
        match self {
            Self::Get => Figures::of(samples, || dice.pick(known).id, |id| store.get(id).is_some()),
            // The text has just come from the network: it is in the cache.
            Self::Admit => Figures::of(
                samples,
                || dice.pick(known).token.to_string(),
                |text| store.admit(&text, Secondary::Tunnel, now).is_ok(),
            ),
        }
    }
}

/// Mints and ends in turn, ten changes each millisecond; says how many.
fn write(store: &Store, stop: &AtomicBool) -> u32 {
    let start = Instant::now();
    let mut changes = 0;
    while !stop.load(Ordering::Relaxed) {
        for user in 0..5 {
            let grant = store.mint(sign_in(user), start).expect("room for it");
            black_box(store.announce(&grant, Secondary::Tunnel, start));
            store.revoke(grant.id(), CloseReason::Logout);
            changes += 2;
        }
        let due = start + Duration::from_millis(u64::from(changes) / 10);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    changes
}

fn sweeping(store: &Store) {
    let now = Instant::now();
    println!(
        "sweep, nothing due:      {}",
        Figures::of(1_000, || (), |()| store.sweep(now).len())
    );
    let live = store.len();
    let start = Instant::now();
    let ended = store.sweep(now + limits().lifetime).len();
    let each = start.elapsed() / u32::try_from(ended).unwrap_or(1).max(1);
    println!("sweep, all {live} due:  {each:?} each");
}

/// A live grant and a token of it.
struct Known {
    id: SessionId,
    token: Token,
}

impl Known {
    fn mint(store: &Store, proof: Authenticated, now: Instant) -> Self {
        let grant: Arc<Grant> = store.mint(proof, now).expect("room for it");
        let token = store.announce(&grant, Secondary::Tunnel, now);
        let known = Self { id: grant.id(), token };
        known.admit(store, now);
        known
    }

    fn admit(&self, store: &Store, now: Instant) {
        let granted = store
            .admit(self.token.as_str(), Secondary::Tunnel, now)
            .expect("a good token");
        black_box(granted.grant().id());
    }
}

/// A sign-in without a directory.
fn sign_in(user: usize) -> Authenticated {
    let rules = config::Authentication {
        disclaimer: None,
        domains: vec!["LAB".to_owned()],
        attempts: 3,
        throttle: config::Throttle {
            per_user: 5,
            per_source: 5,
            window: Duration::from_secs(900),
        },
    };
    let mut chain = Chain::new(&rules, IpAddr::V4(Ipv4Addr::LOCALHOST));
    let answer = Answer::Password {
        user: format!("user{}", user / 4),
        password: Secret::new("x"),
        domain: "LAB".to_owned(),
    };
    let Decision::Check(check) = chain.answer(answer) else {
        unreachable!("the password screen is due")
    };
    let Decision::Done(proof) = chain.judged(check, Verdict::Right, Instant::now()) else {
        unreachable!("a right password is the end of a sign-in")
    };
    proof
}

fn limits() -> config::Session {
    config::Session {
        lifetime: Duration::from_secs(36_000),
        idle: None,
        heartbeat: Duration::from_secs(1_800),
        login_timeout: Duration::from_secs(300),
        first_use: Duration::from_secs(120),
        max: 2_000_000,
        per_user: 100,
        connections: 64,
    }
}

/// How long something took, over many times.
struct Figures {
    mean: Duration,
    p50: Duration,
    p99: Duration,
    p999: Duration,
}

impl Figures {
    fn of<I, T>(samples: usize, mut draw: impl FnMut() -> I, mut act: impl FnMut(I) -> T) -> Self {
        let mut times: Vec<Duration> = (0..samples)
            .map(|_| {
                let input = black_box(draw());
                let start = Instant::now();
                black_box(act(input));
                start.elapsed()
            })
            .collect();
        times.sort_unstable();
        let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
        let mean = times.iter().sum::<Duration>() / u32::try_from(samples).unwrap_or(u32::MAX);
        Self {
            mean,
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
        }
    }
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { mean, p50, p99, p999 } = self;
        write!(
            f,
            "p50 {p50:>8.0?}  p99 {p99:>8.0?}  p99.9 {p999:>8.0?}  mean {mean:>8.0?}"
        )
    }
}

/// SplitMix64: the same figures' conditions each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }

    fn pick<'a>(&mut self, known: &'a [Known]) -> &'a Known {
        &known[self.below(known.len())]
    }

    /// The token with ten other characters in its secret.
    fn forge(&mut self, token: &str) -> String {
        let mut text = token.to_owned();
        for _ in 0..10 {
            let at = "gw-1.".len() + self.below(40);
            let letter = char::from(b'a' + self.below(26) as u8);
            text.replace_range(at..=at, letter.encode_utf8(&mut [0; 4]));
        }
        text
    }
}

/// Resident memory in MiB.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    pages
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok())
        .unwrap_or(0)
        * 4
        / 1024
}
