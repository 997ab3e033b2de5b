//! What the loads did and what went wrong, by kind and by chapter.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use portcullis::clock;

use crate::e2e::balancer::rig::Node;
use crate::support::PATIENCE;

/// What a load is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An HTTPS tunnel with a channel that echoes, and the session's control channel.
    Tunnel,
    /// A Blast WebSocket that echoes.
    Blast,
    /// The same with a flow of datagrams beside it.
    BlastUdp,
    /// A PCoIP connection that echoes.
    Pcoip,
    /// The same with a flow of datagrams beside it.
    PcoipUdp,
    /// `CONNECT` over QUIC.
    Quic,
    /// `CONNECT-UDP` over QUIC.
    QuicUdp,
    /// Requests to a published application on a kept connection of HTTP/1.1.
    Http1,
    /// The same with HTTP/2.
    Http2,
    /// A WebSocket of a published application.
    WebSocket,
    /// A download that lasts from before a change to after it.
    Download,
    /// The same as an upload.
    Upload,
    /// A sign-in in two screens with a change between them.
    SignIn,
}

impl Kind {
    pub(super) const ALL: [Self; 13] = [
        Self::Tunnel,
        Self::Blast,
        Self::BlastUdp,
        Self::Pcoip,
        Self::PcoipUdp,
        Self::Quic,
        Self::QuicUdp,
        Self::Http1,
        Self::Http2,
        Self::WebSocket,
        Self::Download,
        Self::Upload,
        Self::SignIn,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Tunnel => "HTTPS tunnels",
            Self::Blast => "Blast",
            Self::BlastUdp => "Blast with UDP",
            Self::Pcoip => "PCoIP",
            Self::PcoipUdp => "PCoIP with UDP",
            Self::Quic => "QUIC, CONNECT",
            Self::QuicUdp => "QUIC, CONNECT-UDP",
            Self::Http1 => "HTTP/1.1, kept",
            Self::Http2 => "HTTP/2, kept",
            Self::WebSocket => "WebSockets",
            Self::Download => "long downloads",
            Self::Upload => "long uploads",
            Self::SignIn => "half-done sign-ins",
        }
    }

    /// Whether a turn of it lasts for as long as changes do.
    pub(super) fn spans_changes(self) -> bool {
        matches!(self, Self::Download | Self::Upload | Self::SignIn)
    }
}

/// What is done to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chapter {
    Opening,
    Handovers,
    Changes,
    Fleet,
}

impl Chapter {
    const ALL: [Self; 4] = [Self::Opening, Self::Handovers, Self::Changes, Self::Fleet];

    fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Handovers => "handovers",
            Self::Changes => "changes",
            Self::Fleet => "fleet",
        }
    }
}

/// The record that all loads write.
pub(super) struct Book {
    since: Instant,
    chapter: AtomicUsize,
    /// How many changes there were.
    step: AtomicU64,
    is_over: AtomicBool,
    cells: [[Cell; Chapter::ALL.len()]; Kind::ALL.len()],
    /// Turns of each load that is open.
    turns: Mutex<Vec<(Kind, Arc<AtomicU64>)>>,
    /// What went wrong, and what was done meanwhile.
    told: Mutex<Vec<String>>,
    faults: AtomicUsize,
    /// For each node, until when its sessions were last over by the operator's will.
    over: Mutex<[Option<Over>; 2]>,
}

#[derive(Clone, Copy)]
enum Over {
    Now,
    Until(Instant),
}

#[derive(Default)]
struct Cell {
    turns: AtomicU64,
    faults: AtomicU64,
    /// Cut when their time was over.
    over: AtomicU64,
    /// Datagrams that were not answered.
    lost: AtomicU64,
    longest_ms: AtomicU64,
}

impl Book {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: clock::now(),
            chapter: AtomicUsize::new(0),
            step: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            cells: Default::default(),
            turns: Mutex::default(),
            told: Mutex::default(),
            faults: AtomicUsize::new(0),
            over: Mutex::default(),
        })
    }

    /// What happens from here on belongs to that chapter.
    pub(super) fn open(&self, chapter: Chapter) {
        self.chapter.store(chapter as usize, Ordering::SeqCst);
        self.note(chapter.name());
    }

    /// How many changes there were so far.
    pub(super) fn step(&self) -> u64 {
        self.step.load(Ordering::SeqCst)
    }

    /// A change is made.
    pub(super) fn next_step(&self) {
        self.step.fetch_add(1, Ordering::SeqCst);
    }

    /// Whether loads go on.
    pub(super) fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::SeqCst)
    }

    /// Whether each node was changed since that step, wholly after it; or all is over.
    pub(super) fn has_changed_since(&self, step: u64) -> bool {
        // One change may have been in its middle, and two nodes take turns.
        self.step() >= step + 3 || !self.goes_on()
    }

    /// Ends all loads.
    pub(super) fn close(&self) {
        self.is_over.store(true, Ordering::SeqCst);
    }

    /// From here on the sessions of a node are over.
    pub(super) fn begin_to_end(&self, node: Node) {
        self.over.lock()[node as usize] = Some(Over::Now);
    }

    /// And whatever begins from here on is to go on.
    pub(super) fn end_no_more(&self, node: Node) {
        self.over.lock()[node as usize] = Some(Over::Until(clock::now()));
    }

    /// Whether what began then may have been cut. While a node is away the balancer brings its clients to the other one, some
    /// of them half-way through something: it does not matter at which node they were thought to be.
    fn was_over(&self, since: Instant) -> bool {
        self.over.lock().iter().flatten().any(|over| match over {
            Over::Now => true,
            Over::Until(end) => since <= *end,
        })
    }

    /// Keeps what was done to the nodes, to hold it against faults.
    pub(super) fn note(&self, what: impl std::fmt::Display) {
        let line = format!("+{:.3} s  {what}", (clock::now() - self.since).as_secs_f64());
        self.told.lock().push(line);
    }

    /// Waits until as many loads are open, or could not be opened.
    pub(super) fn wait_until_open(&self, count: usize) {
        let deadline = clock::now() + 3 * PATIENCE;
        while self.turns.lock().len() + self.faults() < count {
            assert!(clock::now() < deadline, "not all loads are open\n{}", self.told());
            std::thread::sleep(MOMENT);
        }
    }

    /// Waits until every load whose turns are short had a whole one from here on. One that does not within the patience of
    /// tests writes that itself.
    pub(super) fn let_all_have_a_turn(&self) {
        let deadline = clock::now() + PATIENCE;
        let paced = |turns: &[(Kind, Arc<AtomicU64>)]| -> Vec<_> {
            let paced = turns.iter().filter(|(kind, _)| !kind.spans_changes());
            paced.map(|(_, turns)| turns.clone()).collect()
        };
        let waiting: Vec<_> = paced(&self.turns.lock())
            .into_iter()
            .map(|turns| (turns.load(Ordering::SeqCst), turns))
            .collect();
        // One turn may have been in its middle.
        let all_had = || {
            waiting
                .iter()
                .all(|(before, turns)| turns.load(Ordering::SeqCst) >= before + 2)
        };
        while !all_had() && self.faults() == 0 && clock::now() < deadline {
            std::thread::sleep(MOMENT);
        }
    }

    pub(super) fn faults(&self) -> usize {
        self.faults.load(Ordering::SeqCst)
    }

    /// What went wrong and when, between what was done.
    pub(super) fn told(&self) -> String {
        self.told.lock().join("\n")
    }

    /// The figures.
    pub(super) fn table(&self, count: impl Fn(Kind) -> usize) -> String {
        let mut table = format!("{:<20} {:>5}", "", "loads");
        for chapter in &Chapter::ALL[1..] {
            write!(table, " | {:^38}", chapter.name()).unwrap();
        }
        write!(table, "\n{:<26}", "").unwrap();
        for _ in &Chapter::ALL[1..] {
            write!(
                table,
                " | {:>7} {:>6} {:>6} {:>6} {:>9}",
                "turns", "wrong", "over", "lost", "longest"
            )
            .unwrap();
        }
        for kind in Kind::ALL {
            write!(table, "\n{:<20} {:>5}", kind.name(), count(kind)).unwrap();
            for cell in &self.cells[kind as usize][1..] {
                let of = |figure: &AtomicU64| figure.load(Ordering::SeqCst);
                let longest = of(&cell.longest_ms);
                let longest = if kind.spans_changes() {
                    "-".to_owned()
                } else {
                    format!("{longest} ms")
                };
                let [turns, faults, over, lost] = [&cell.turns, &cell.faults, &cell.over, &cell.lost].map(of);
                write!(table, " | {turns:>7} {faults:>6} {over:>6} {lost:>6} {longest:>9}").unwrap();
            }
        }
        table
    }

    fn cell(&self, kind: Kind) -> &Cell {
        &self.cells[kind as usize][self.chapter.load(Ordering::SeqCst)]
    }
}

/// One load's hand in the book.
#[derive(Clone)]
pub(super) struct Load {
    pub(super) book: Arc<Book>,
    pub(super) kind: Kind,
    /// The last octet of its address, and the number of its user.
    pub(super) number: u8,
    turns: Arc<AtomicU64>,
}

impl Load {
    pub(super) fn new(book: &Arc<Book>, kind: Kind, number: u8) -> Self {
        Self {
            book: book.clone(),
            kind,
            number,
            turns: Arc::default(),
        }
    }

    /// It is open for the first time.
    pub(super) fn is_open(&self) {
        self.book.turns.lock().push((self.kind, self.turns.clone()));
    }

    /// A turn ended as it should.
    pub(super) fn turned(&self, took: Duration) {
        let cell = self.book.cell(self.kind);
        cell.turns.fetch_add(1, Ordering::SeqCst);
        let took = u64::try_from(took.as_millis()).unwrap();
        cell.longest_ms.fetch_max(took, Ordering::SeqCst);
        self.turns.fetch_add(1, Ordering::SeqCst);
    }

    /// A datagram was not answered.
    pub(super) fn lost(&self) {
        self.book.cell(self.kind).lost.fetch_add(1, Ordering::SeqCst);
    }

    /// What began then did not go on. Whether that may be.
    pub(super) fn broke(&self, node: Option<Node>, since: Instant, what: &str) -> bool {
        let cell = self.book.cell(self.kind);
        let may_be = self.book.was_over(since);
        if may_be {
            cell.over.fetch_add(1, Ordering::SeqCst);
        } else {
            cell.faults.fetch_add(1, Ordering::SeqCst);
            let at = node.map_or("no node", Node::name);
            let (kind, number) = (self.kind.name(), self.number);
            self.book
                .note(format!("WRONG: {kind} of 127.0.1.{number} at {at}: {what}"));
            self.book.faults.fetch_add(1, Ordering::SeqCst);
        }
        may_be
    }
}

const MOMENT: Duration = Duration::from_millis(10);
