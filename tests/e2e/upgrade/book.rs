//! What the loads did and what went wrong, by kind and by chapter.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
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

    /// Whether a node that drains lets it go before the time of what is open is over: it closes connections that wait for
    /// a request, and begins no session.
    fn ends_with_service(self) -> bool {
        matches!(self, Self::Http1 | Self::Http2 | Self::SignIn)
    }
}

/// What is done to the nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chapter {
    Opening,
    Handovers,
    Changes,
    FleetHandover,
    FleetRestart,
}

impl Chapter {
    const ALL: [Self; 5] = [
        Self::Opening,
        Self::Handovers,
        Self::Changes,
        Self::FleetHandover,
        Self::FleetRestart,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Opening => "opening",
            Self::Handovers => "handovers",
            Self::Changes => "changes",
            Self::FleetHandover => "fleet, by handover",
            Self::FleetRestart => "fleet, by restart",
        }
    }
}

/// The record that all loads write.
pub(super) struct Book {
    since: Instant,
    /// The same moment on the clock of the nodes' logs.
    since_wall: Timestamp,
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
    /// The nodes that are restarted, and when.
    outages: Mutex<[Outage; 2]>,
    /// What broke at a node that is restarted, to be held against how that went.
    suspects: Mutex<Vec<Broken>>,
}

/// A node's way through a restart.
#[derive(Clone, Copy, Default)]
enum Outage {
    /// It is not restarted.
    #[default]
    None,
    /// It is to be restarted.
    Awaited,
    /// It was.
    Over(Times),
}

/// The moments of a restart.
#[derive(Clone, Copy)]
pub(super) struct Times {
    /// From here on the node begins nothing new.
    pub(super) drains: Instant,
    /// From here on the time of what is open there is over.
    pub(super) cuts: Instant,
    /// From here on it takes in nobody, and whoever comes goes to the other one.
    pub(super) closes: Instant,
}

impl Times {
    /// Whether something at the node was open when its time was over, or was asked of it while it did nothing new.
    fn explain(self, broken: &Broken) -> bool {
        let Self { drains, cuts, closes } = self;
        let Broken {
            kind,
            asks,
            began,
            ended,
            ..
        } = *broken;
        let is_refused = ended >= drains && (began >= drains || asks || kind.ends_with_service());
        began <= closes && (ended >= cuts || is_refused)
    }
}

/// Something that did not go on.
struct Broken {
    chapter: usize,
    kind: Kind,
    number: u8,
    node: Option<Node>,
    /// Whether something new was asked for, beside what is open.
    asks: bool,
    began: Instant,
    ended: Instant,
    what: String,
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
            since_wall: clock::wall(),
            chapter: AtomicUsize::new(0),
            step: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            cells: Default::default(),
            turns: Mutex::default(),
            told: Mutex::default(),
            faults: AtomicUsize::new(0),
            outages: Mutex::default(),
            suspects: Mutex::default(),
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

    /// From here on both nodes are to be restarted.
    pub(super) fn await_restarts(&self) {
        *self.outages.lock() = [Outage::Awaited; 2];
    }

    /// A node was restarted then.
    pub(super) fn was_restarted(&self, node: Node, times: Times) {
        self.outages.lock()[node as usize] = Outage::Over(times);
    }

    /// A moment in the log of a node.
    pub(super) fn moment(&self, logged: Timestamp) -> Instant {
        self.since + Duration::try_from(logged.duration_since(self.since_wall)).unwrap()
    }

    /// Holds what broke at nodes that were restarted against how that went: what that does not explain is a fault.
    pub(super) fn judge(&self) {
        let outages = *self.outages.lock();
        for broken in std::mem::take(&mut *self.suspects.lock()) {
            let explained = broken.node.is_some_and(|node| match outages[node as usize] {
                Outage::Over(times) => times.explain(&broken),
                Outage::None | Outage::Awaited => false,
            });
            if explained {
                let cell = &self.cells[broken.kind as usize][broken.chapter];
                cell.over.fetch_add(1, Ordering::SeqCst);
            } else {
                self.went_wrong(&broken);
            }
        }
    }

    /// Whether a restart may turn out to explain it.
    fn may_be_explained(&self, broken: &Broken) -> bool {
        let outages = self.outages.lock();
        broken.node.is_some_and(|node| match outages[node as usize] {
            Outage::None => false,
            Outage::Awaited => true,
            Outage::Over(times) => times.explain(broken),
        })
    }

    fn went_wrong(&self, broken: &Broken) {
        let cell = &self.cells[broken.kind as usize][broken.chapter];
        cell.faults.fetch_add(1, Ordering::SeqCst);
        let at = broken.node.map_or("no node", Node::name);
        let (kind, number, what) = (broken.kind.name(), broken.number, &broken.what);
        let began = (broken.began - self.since).as_secs_f64();
        self.note_at(
            broken.ended,
            format_args!("WRONG: {kind} of 127.0.1.{number} at {at}, begun at +{began:.3} s: {what}"),
        );
        self.faults.fetch_add(1, Ordering::SeqCst);
    }

    /// Keeps what was done to the nodes, to hold it against faults.
    pub(super) fn note(&self, what: impl std::fmt::Display) {
        self.note_at(clock::now(), what);
    }

    /// The same of an earlier moment.
    pub(super) fn note_at(&self, at: Instant, what: impl std::fmt::Display) {
        let line = format!("+{:.3} s  {what}", (at - self.since).as_secs_f64());
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

    /// Waits until every load whose turns are short had a whole one from here on.
    pub(super) fn let_all_have_a_turn(&self) {
        let mut waiting = Vec::new();
        for (kind, turns) in self.turns.lock().iter().filter(|(kind, _)| !kind.spans_changes()) {
            waiting.push((*kind, turns.load(Ordering::SeqCst), turns.clone()));
        }
        // One turn may have been in its middle.
        let late = || {
            waiting
                .iter()
                .filter(|(_, before, turns)| turns.load(Ordering::SeqCst) < before + 2)
        };
        let deadline = clock::now() + 2 * PATIENCE;
        while late().next().is_some() && self.faults() == 0 {
            let names = || late().map(|(kind, ..)| kind.name()).collect::<Vec<_>>();
            assert!(clock::now() < deadline, "no turn of {:?}", names());
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

    /// What began then at that node did not go on, or was asked of it in vain. Whether that may be.
    pub(super) fn broke(&self, node: Option<Node>, began: Instant, asks: bool, what: &str) -> bool {
        let broken = Broken {
            chapter: self.book.chapter.load(Ordering::SeqCst),
            kind: self.kind,
            number: self.number,
            node,
            asks,
            began,
            ended: clock::now(),
            what: what.to_owned(),
        };
        let may_be = self.book.may_be_explained(&broken);
        if may_be {
            self.book.suspects.lock().push(broken);
        } else {
            self.book.went_wrong(&broken);
        }
        may_be
    }
}

const MOMENT: Duration = Duration::from_millis(10);
