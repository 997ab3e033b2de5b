//! The first octets of datagrams from strangers: no octets panic, and a table that sees them in any order keeps its caps.
#![no_main]

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use libfuzzer_sys::fuzz_target;
use portcullis::config;
use portcullis::listen::ConnectionIds;
use portcullis::tunnel::flow::Port;
use portcullis::tunnel::flow::first::First;
use portcullis::tunnel::flow::table::{Pin, Table, Verdict};

fuzz_target!(|data: &[u8]| {
    let limits = config::Udp {
        first_datagram: Duration::from_secs(30),
        agent_answer: Duration::from_secs(5),
        idle: Duration::from_secs(120),
        flows: 4,
        flows_per_session: 2,
        strays_per_source: 10,
    };
    let ids = ConnectionIds::new(&[7; 32], 0).unwrap();
    let mut table: Table<()> = Table::new(limits);
    let now = Instant::now();
    let mut rest = data;
    while let Some((&cut, after)) = rest.split_first() {
        let (datagram, after) = after.split_at(usize::from(cut).min(after.len()));
        rest = after;
        let first = First::of(datagram);
        assert!(datagram.len() >= First::LOOKED_AT || !first.may_open(Port::Listener));
        assert!(!first.may_open(Port::Pcoip) || first.may_open(Port::Listener));
        let pin = Pin {
            client: SocketAddr::from(([192, 0, 2, cut], u16::from(cut) + 1)),
            local: SocketAddr::from(([192, 0, 2, 1], 4172)),
        };
        let port = if cut & 1 == 0 { Port::Pcoip } else { Port::Listener };
        // Nothing is open, so nothing opens.
        let verdict = table.arrived(port, pin, first, now);
        assert!(!matches!(verdict, Verdict::Opens(..) | Verdict::Of(_) | Verdict::Before));
        let _ = ids.is_of_another(datagram);
    }
    assert_eq!((table.flows(), table.leases()), (0, 0));
});
