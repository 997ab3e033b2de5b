//! The access log: one line of JSON a request.
//!
//! A line is made in the task that served the request, into memory that its thread keeps, and laid into one of a few
//! baskets of bytes. One thread of its own empties the baskets and writes. Whoever lays a line in waits for no file: if
//! the thread cannot keep up, or its pipe is full, or the disk is, lines are dropped and counted, and the log says so once a
//! minute. Lines of different threads may come in another order than their times.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use parking_lot::{Condvar, Mutex};

use crate::clock;
use crate::config::web;
use crate::fault::WebFault;
use crate::types::AccessField;

mod line;

use line::Fields;

/// What is told of one request.
#[derive(Clone, Debug)]
pub struct Line<'a> {
    /// When its head was there.
    pub begun: Timestamp,
    /// The listener's name.
    pub listener: &'a str,
    /// The rule's name.
    pub rule: Option<&'a str>,
    /// The pool's name.
    pub pool: Option<&'a str>,
    /// The name of how the target is spoken to.
    pub backend: Option<&'a str>,
    /// The client.
    pub client: SocketAddr,
    /// The method.
    pub method: &'a str,
    /// Path and query as they came.
    pub original_target: &'a [u8],
    /// The path that the target was asked for, or would have been.
    pub path: &'a str,
    /// The query that the target was asked with, without `?`.
    pub query: Option<&'a str>,
    /// `User-Agent`.
    pub user_agent: Option<&'a [u8]>,
    /// The status that the client was answered; 499 if it had gone.
    pub status: u16,
    /// The version of HTTP that the client spoke, such as `HTTP/1.1`.
    pub version: &'a str,
    /// Bytes of the request's body.
    pub received: u64,
    /// Bytes of the answer's body.
    pub sent: u64,
    /// From the first byte of the answer to the last.
    pub answering: Duration,
    /// From the head of the request to the end.
    pub taken: Duration,
    /// What the target was told as `X-Appgw-Trace-Id`.
    pub trace: &'a str,
    /// Version of TLS and cipher suite; `None` without TLS.
    pub tls: Option<(&'a str, &'a str)>,
    /// What the target did, if one was reached.
    pub target: Option<Served>,
    /// Further tries that it took.
    pub retries: u32,
    /// Fields of the request that were taken out for their names.
    pub dropped_fields: usize,
    /// The host that the client asked for.
    pub original_host: &'a str,
    /// The host that the target was asked for.
    pub host: Option<&'a str>,
    /// Why there was no answer of the target, or not the whole of it.
    pub fault: Option<WebFault>,
    /// The answer's `Content-Type`.
    pub content_type: Option<&'a [u8]>,
}

/// What a target did for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// The target's address.
    pub address: SocketAddr,
    /// The port from which it was reached.
    pub source_port: Option<u16>,
    /// The status that it answered.
    pub status: Option<u16>,
    /// From the end of the request's head to the head of the answer.
    pub latency: Option<Duration>,
    /// Whether its connection had served other requests.
    pub reused: bool,
}

impl Line<'_> {
    /// Whether nobody has to look at it.
    fn went_well(&self) -> bool {
        self.fault.is_none() && self.status < 400
    }

    /// One of a hundred equal shares of all requests, the same whoever asks.
    fn share(&self) -> u64 {
        // The trace is drawn at random: its last digits are as good as a die.
        let tail = self.trace.get(self.trace.len().saturating_sub(8)..).unwrap_or_default();
        u64::from_str_radix(tail, 16).unwrap_or_default() % 100
    }
}

/// The access log of a node. It ends when it is dropped; what waits then is still written, if it goes quickly.
#[derive(Debug)]
pub struct AccessLog {
    shared: Arc<Shared>,
    node: String,
    form: ArcSwap<Form>,
}

/// What is written of which requests.
#[derive(Debug)]
struct Form {
    is_on: bool,
    sample_percent: u64,
    fields: Fields,
}

/// What the log and its thread have in common.
#[derive(Debug)]
struct Shared {
    baskets: [Basket; BASKETS],
    /// Bytes in all baskets, and in the thread's hands.
    waiting: AtomicUsize,
    /// Lines that nobody will read.
    dropped: AtomicU64,
    /// Where lines go from the next write on, after a change.
    next: Mutex<Option<Output>>,
    bell: Bell,
}

/// Lines that wait. Apart from its neighbours in memory: each is another worker's.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Basket(Mutex<Vec<u8>>);

#[derive(Debug)]
enum Output {
    Nowhere,
    Stdout,
    File(File),
}

/// Rung for the thread.
#[derive(Debug, Default)]
struct Bell {
    has_rung: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rung: bool,
    ends: bool,
    /// Rounds that the thread has done.
    rounds: u64,
}

impl AccessLog {
    /// Starts the log of the node with that name.
    ///
    /// # Errors
    /// [`AccessLogFault`] if its file cannot be opened, or no thread can be had.
    pub fn start(config: &web::AccessLog, node: &str) -> Result<Self, AccessLogFault> {
        let shared = Arc::new(Shared {
            baskets: Default::default(),
            waiting: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
            next: Mutex::new(None),
            bell: Bell::default(),
        });
        let output = Output::open(config)?;
        let writer = shared.clone();
        std::thread::Builder::new()
            .name("access-log".into())
            .spawn(move || writer.run(output))
            .map_err(AccessLogFault::Thread)?;
        Ok(Self {
            shared,
            node: node.to_owned(),
            form: ArcSwap::from_pointee(Form::of(config)),
        })
    }

    /// Works to another configuration from the next line on. A file is opened again, so that one that was moved away is
    /// left to whoever moved it.
    ///
    /// # Errors
    /// [`AccessLogFault`] if its file cannot be opened; then all stays as it was.
    pub fn apply(&self, config: &web::AccessLog) -> Result<(), AccessLogFault> {
        let output = Output::open(config)?;
        *self.shared.next.lock() = Some(output);
        self.form.store(Arc::new(Form::of(config)));
        self.shared.bell.ring();
        Ok(())
    }

    /// Whether lines go anywhere: if not, none has to be made.
    pub fn is_on(&self) -> bool {
        self.form.load().is_on
    }

    /// Tells of a request. Never waits for a file.
    pub fn write(&self, line: &Line<'_>) {
        let form = self.form.load();
        if !form.is_on || (form.sample_percent < 100 && line.went_well() && line.share() >= form.sample_percent) {
            return;
        }
        SCRATCH.with_borrow_mut(|scratch| {
            scratch.bytes.clear();
            line::render(&mut scratch.bytes, line, &self.node, form.fields);
            self.shared.lay(scratch.basket, &scratch.bytes);
            scratch.bytes.shrink_to(KEPT);
        });
    }

    /// Lines that were dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped_count().load(Ordering::Relaxed)
    }

    /// The same as it grows.
    pub fn dropped_count(&self) -> &AtomicU64 {
        &self.shared.dropped
    }

    /// Waits until all that was told before has been written, but no longer than that; whether it has.
    pub fn flush(&self, patience: Duration) -> bool {
        self.shared.bell.wait_for_rounds(2, patience)
    }
}

impl Drop for AccessLog {
    fn drop(&mut self) {
        self.flush(LAST_PATIENCE);
        self.shared.bell.end();
    }
}

impl Form {
    fn of(config: &web::AccessLog) -> Self {
        let fields: BTreeSet<AccessField> = config.fields.iter().filter_map(|name| name.parse().ok()).collect();
        Self {
            is_on: config.to.is_some(),
            sample_percent: config.sample_percent.into(),
            fields: Fields::of(&fields),
        }
    }
}

impl Output {
    fn open(config: &web::AccessLog) -> Result<Self, AccessLogFault> {
        Ok(match &config.to {
            None => Self::Nowhere,
            Some(web::AccessLogTo::Stdout) => Self::Stdout,
            Some(web::AccessLogTo::File(path)) => Self::File(open(path)?),
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Nowhere => Ok(()),
            Self::Stdout => {
                let mut out = io::stdout().lock();
                out.write_all(bytes)?;
                out.flush()
            }
            Self::File(file) => file.write_all(bytes),
        }
    }
}

fn open(path: &Path) -> Result<File, AccessLogFault> {
    let mut options = OpenOptions::new();
    // Addresses of people are in it.
    let opened = options.create(true).append(true).mode(0o640).open(path);
    opened.map_err(|cause| AccessLogFault::File {
        path: path.to_owned(),
        cause,
    })
}

impl Shared {
    fn lay(&self, basket: usize, line: &[u8]) {
        if self.waiting.fetch_add(line.len(), Ordering::Relaxed) + line.len() > MOST_WAITING {
            self.waiting.fetch_sub(line.len(), Ordering::Relaxed);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.baskets[basket % BASKETS].0.lock().extend_from_slice(line);
        self.bell.ring();
    }

    /// The thread.
    fn run(&self, mut output: Output) {
        let mut hands = Vec::new();
        let mut told = Told::default();
        while self.bell.wait(TELL_EVERY) {
            if let Some(next) = self.next.lock().take() {
                output = next;
            }
            for basket in &self.baskets {
                std::mem::swap(&mut *basket.0.lock(), &mut hands);
                self.empty(&mut hands, &mut output);
            }
            if let Some(dropped) = told.more(self.dropped.load(Ordering::Relaxed), clock::now()) {
                tracing::warn!(dropped, "the access log cannot keep up: lines are missing in it");
            }
            self.bell.done();
        }
    }

    fn empty(&self, hands: &mut Vec<u8>, output: &mut Output) {
        if hands.is_empty() {
            return;
        }
        if output.write(hands).is_err() {
            // Why is known to whoever looks after the disk; how many is told with the others.
            let lines = hands.iter().filter(|&&byte| byte == b'\n').count();
            self.dropped.fetch_add(lines as u64, Ordering::Relaxed);
        }
        self.waiting.fetch_sub(hands.len(), Ordering::Relaxed);
        hands.clear();
        hands.shrink_to(KEPT);
    }
}

impl Bell {
    /// Costs a system call only if the thread sleeps and nobody has rung yet.
    fn ring(&self) {
        // Looked at first: whoever writes takes the place in memory away from the others.
        if !self.has_rung.load(Ordering::Relaxed) && !self.has_rung.swap(true, Ordering::AcqRel) {
            self.state.lock().rung = true;
            self.changed.notify_all();
        }
    }

    /// Waits for a ring, or that long, and then for what comes right behind it. `false` at the end.
    fn wait(&self, longest: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.rung && !state.ends {
            self.changed.wait_for(&mut state, longest);
        }
        if state.rung && !state.ends {
            // Many lines in one write: only the end, or someone who waits, cuts this short.
            self.changed.wait_for(&mut state, GATHER);
        }
        state.rung = false;
        self.has_rung.store(false, Ordering::Release);
        !state.ends
    }

    fn done(&self) {
        self.state.lock().rounds += 1;
        self.changed.notify_all();
    }

    fn wait_for_rounds(&self, rounds: u64, patience: Duration) -> bool {
        let deadline = clock::now() + patience;
        let mut state = self.state.lock();
        // The round that runs may have passed the basket already: the one after it has not.
        let wanted = state.rounds + rounds;
        while state.rounds < wanted {
            state.rung = true;
            self.changed.notify_all();
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return false;
            }
        }
        true
    }

    fn end(&self) {
        self.state.lock().ends = true;
        self.changed.notify_all();
    }
}

/// How many drops the log was told of, and when.
#[derive(Debug, Default)]
struct Told {
    dropped: u64,
    at: Option<Instant>,
}

impl Told {
    /// Drops that are to be told now, if there were so many until now.
    fn more(&mut self, dropped: u64, now: Instant) -> Option<u64> {
        let more = dropped.saturating_sub(self.dropped);
        let is_early = |at| now.saturating_duration_since(at) < TELL_EVERY;
        if more == 0 || self.at.is_some_and(is_early) {
            return None;
        }
        *self = Self { dropped, at: Some(now) };
        Some(more)
    }
}

/// Why the access log could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum AccessLogFault {
    /// The file cannot be opened.
    #[error("the access log {path} cannot be opened: {cause}. Make its folder, and let this program's user write there", path = path.display())]
    File {
        /// As configured.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// There is no thread.
    #[error("no thread for the access log: {0}")]
    Thread(io::Error),
}

/// What a thread keeps to make lines in.
struct Scratch {
    bytes: Vec<u8>,
    basket: usize,
}

static NEXT_BASKET: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch {
        bytes: Vec::new(),
        basket: NEXT_BASKET.fetch_add(1, Ordering::Relaxed),
    });
}

/// So many that workers rarely meet at one.
const BASKETS: usize = 16;

/// Bytes that may wait in all.
const MOST_WAITING: usize = 8 << 20;

/// Room that is kept when it is not in use.
const KEPT: usize = 64 << 10;

/// How long a line may wait for others.
const GATHER: Duration = Duration::from_millis(20);

const TELL_EVERY: Duration = Duration::from_secs(60);

const LAST_PATIENCE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests;
