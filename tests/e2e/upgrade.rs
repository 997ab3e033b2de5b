//! Two nodes behind HAProxy under loads of every kind, while their program and their configuration are changed: nobody
//! notices.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use self::book::{Book, Chapter, Kind, Load};
use self::client::Client;
use self::site::{Method, Site};
use crate::e2e::balancer::rig::Node;

mod book;
mod client;
mod desktop;
mod quic;
mod sign_in;
mod site;
mod tunnel;
mod web;

/// Whether there are flows of datagrams and connections over QUIC.
const DATAGRAMS: bool = true;

/// How many there are of each kind: 200 in all.
fn count(kind: Kind) -> usize {
    match kind {
        Kind::Tunnel => 60,
        Kind::Blast | Kind::Http1 => 20,
        Kind::Pcoip | Kind::WebSocket => 5,
        Kind::Http2 | Kind::Download | Kind::Upload | Kind::SignIn => 10,
        Kind::BlastUdp | Kind::QuicUdp if DATAGRAMS => 10,
        Kind::PcoipUdp | Kind::Quic if DATAGRAMS => 15,
        Kind::BlastUdp | Kind::PcoipUdp | Kind::Quic | Kind::QuicUdp => 0,
    }
}

#[test]
fn two_hundred_sessions_outlive_handovers_changes_and_upgrades() {
    let book = Book::new();
    let site = Arc::new(Site::start(&book, DATAGRAMS));
    let loads = Loads::start(&book, &site);
    let done = client::attempt(|| {
        book.wait_until_open(Kind::ALL.into_iter().map(count).sum());
        hand_over_three_times(&book, &site);
        change_a_hundred_times(&book, &site);
        upgrade_the_fleet(&book, &site);
    });
    drop(loads);
    book.judge();
    println!("{}", book.table(count));
    let faults = book.faults();
    let told = || format!("{}\n{}", book.told(), site.warnings());
    assert!(done.is_ok() && faults == 0, "{faults} faults, {done:?}\n{}", told());
    site.wait_until_the_old_have_ended();
}

fn hand_over_three_times(book: &Book, site: &Site) {
    book.open(Chapter::Handovers);
    for _ in 0..3 {
        for node in Node::BOTH {
            book.note(site.hand_over(node));
            book.next_step();
            book.let_all_have_a_turn();
        }
    }
}

fn change_a_hundred_times(book: &Book, site: &Site) {
    book.open(Chapter::Changes);
    for turn in 1..=100 {
        for node in Node::BOTH {
            site.change(node, turn);
        }
        book.note(format_args!("change {turn}"));
        if turn.is_multiple_of(5) {
            book.next_step();
            book.let_all_have_a_turn();
        }
    }
}

fn upgrade_the_fleet(book: &Book, site: &Site) {
    book.open(Chapter::FleetHandover);
    site.upgrade_all(book, Method::Handover);
    book.let_all_have_a_turn();
    assert_eq!(site.downs(), 0, "the balancer took a node to be down");
    book.open(Chapter::FleetRestart);
    book.await_restarts();
    site.upgrade_all(book, Method::Restart);
    book.let_all_have_a_turn();
}

/// The loads, each in a thread. Dropped, they end.
struct Loads {
    book: Arc<Book>,
    threads: Vec<JoinHandle<()>>,
    _runtime: Runtime,
}

impl Loads {
    fn start(book: &Arc<Book>, site: &Arc<Site>) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let kinds = Kind::ALL
            .into_iter()
            .flat_map(|kind| std::iter::repeat_n(kind, count(kind)));
        let start = |(kind, number)| {
            let client = Client::new(site, Load::new(book, kind, number), runtime.handle());
            let thread = std::thread::Builder::new().name(format!("{kind:?} of 127.0.1.{number}"));
            thread.spawn(move || client.run()).unwrap()
        };
        Self {
            book: book.clone(),
            threads: kinds.zip(1..).map(start).collect(),
            _runtime: runtime,
        }
    }
}

impl Drop for Loads {
    fn drop(&mut self) {
        self.book.close();
        for thread in self.threads.drain(..) {
            // Faults are in the book.
            let _ = thread.join();
        }
    }
}

/// Between two turns of a load.
const PACE: Duration = Duration::from_millis(250);
