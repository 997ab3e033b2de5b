//! Which runtime shape should the data plane have?
//!
//! `cargo bench --bench runtime_shape` (below four minutes), or with `-- --quick` a glance (below 40 s). The program
//! starts itself as the server, one [`Shape`] at a time, loads it from its own process, and charges the server's CPU
//! time to the units that came through. The shapes alternate within each round and the order turns from round to
//! round, so that a busy machine troubles all of them alike: trust CPU per unit and the ratios, not the wall rates.
//!
//! `docs/decisions/0001-runtime-shape.md` has the figures and what was decided.

#[path = "runtime_shape/load.rs"]
mod load;
#[path = "runtime_shape/process.rs"]
mod process;
#[path = "runtime_shape/server.rs"]
mod server;
#[path = "runtime_shape/table.rs"]
mod table;

use std::net::SocketAddr;
use std::num::NonZero;
use std::time::Duration;

use anyhow::Context;
use load::{Idle, Kind, Outcome, Plan, Target};
use process::Child;
use server::Shape;
use table::Table;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Data-plane workers that every shape is given, and threads of clients: one of each a core.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, NonZero::get)
}

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [flag, letter, upstream] = arguments.as_slice()
        && flag == process::SERVE
    {
        let shape = Shape::from_letter(letter).context("no such shape")?;
        return server::serve(shape, workers(), upstream.parse()?);
    }
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(()); // `cargo test --all-targets` starts benchmarks too
    }
    let effort = if arguments.iter().any(|argument| argument == "--quick") {
        Effort::QUICK
    } else {
        Effort::FULL
    };
    process::raise_file_limit()?;
    run(&effort)
}

/// How long and how often to measure.
struct Effort {
    rounds: usize,
    span: Duration,
    idle: usize,
}

impl Effort {
    const FULL: Self = Self {
        rounds: 3,
        span: Duration::from_millis(1_000),
        idle: 2_000,
    };
    const QUICK: Self = Self {
        rounds: 1,
        span: Duration::from_millis(600),
        idle: 400,
    };
}

fn run(effort: &Effort) -> anyhow::Result<()> {
    let upstream = load::upstream()?;
    let mut table = Table::default();
    let (kernel, workers, load) = (process::kernel()?, workers(), process::load_average()?);
    table.remark(&format!("kernel {kernel}, {workers} workers, load {load}"));
    for round in 0..effort.rounds {
        for turn in 0..Shape::ALL.len() {
            let shape = Shape::ALL[(round + turn) % Shape::ALL.len()];
            let trial = Trial::start(shape, upstream, effort, &mut table);
            let measured = trial.and_then(Trial::measure);
            measured.with_context(|| format!("shape ({})", shape.letter()))?;
        }
        let load = process::load_average()?;
        table.remark(&format!("after round {}: load {load}", round + 1));
    }
    table.print(&mut std::io::stdout().lock()).context("cannot print")
}

/// One shape on a fresh server process.
struct Trial<'a> {
    shape: Shape,
    child: Child,
    target: Target,
    effort: &'a Effort,
    table: &'a mut Table,
}

impl<'a> Trial<'a> {
    fn start(shape: Shape, upstream: SocketAddr, effort: &'a Effort, table: &'a mut Table) -> anyhow::Result<Self> {
        let mut child = Child::start(shape, upstream)?;
        let target = child.target()?;
        Ok(Self {
            shape,
            child,
            target,
            effort,
            table,
        })
    }

    fn measure(mut self) -> anyhow::Result<()> {
        self.beside_idle()?;
        self.exchanges("small request, 64 conns", Kind::Small, 64)?;
        self.exchanges("full handshake + request, 16 clients", Kind::Fresh, 16)?;
        self.stream("stream down, 4 conns", Kind::Down)?;
        self.stream("tunnel down from an upstream, 4 conns", Kind::Tunnel)?;
        self.exchanges("ping-pong every 10 ms, 256 conns", Kind::Paced, 256)?;
        self.exchanges("ping-pong, 8 conns", Kind::Echo, 8)?;
        self.exchanges("ping-pong, 2 conns", Kind::Echo, 2)?;
        self.exchanges("ping-pong by an actor nearby, 8 conns", Kind::Near, 8)?;
        self.exchanges("ping-pong by an actor elsewhere, 8 conns", Kind::Far, 8)?;
        self.skew("2 streams", Kind::Down)?;
        self.skew("2 yielding streams", Kind::YieldingDown)
    }

    /// Memory of idle connections, and the small requests beside them.
    fn beside_idle(&mut self) -> anyhow::Result<()> {
        let before = self.child.pss_kb()?;
        let idle = Idle::open(&self.target, self.effort.idle)?;
        let grown = self.child.pss_kb()?.saturating_sub(before);
        self.add("idle connection: PSS kB", grown as f64 / self.effort.idle as f64);
        self.exchanges("small request beside the idle", Kind::Small, 64)?;
        drop(idle);
        self.child.wait_until_empty()
    }

    fn exchanges(&mut self, name: &str, kind: Kind, connections: usize) -> anyhow::Result<()> {
        let outcome = self.run(&Plan::even(kind, connections, workers()))?;
        self.add(&format!("{name}: CPU µs"), outcome.cpu_us_per_unit());
        self.add(&format!("{name}: switches"), outcome.switches_per_unit());
        self.add(&format!("{name}: per s"), outcome.per_second());
        self.add(&format!("{name}: p50 µs"), outcome.percentile(0.50));
        self.add(&format!("{name}: p99 µs"), outcome.percentile(0.99));
        Ok(())
    }

    fn stream(&mut self, name: &str, kind: Kind) -> anyhow::Result<()> {
        let outcome = self.run(&Plan::even(kind, 4, workers()))?;
        self.add(&format!("{name}: CPU ms/Gbit"), outcome.cpu_ms_per_gbit());
        self.add(&format!("{name}: Gbit/s"), outcome.gbit_per_s());
        Ok(())
    }

    /// Two heavy streams beside 32 light connections, each kind on a client thread of its own: the client is no queue.
    fn skew(&mut self, streams: &str, kind: Kind) -> anyhow::Result<()> {
        let outcome = self.run(&Plan::beside(kind, 2, Kind::Paced, 32))?;
        let (p50, p99) = (outcome.percentile(0.50), outcome.percentile(0.99));
        self.add(&format!("32 ping-pongs beside {streams}: p50 µs"), p50);
        self.add(&format!("32 ping-pongs beside {streams}: p99 µs"), p99);
        self.add(&format!("  {streams}: Gbit/s"), outcome.gbit_per_s());
        self.add(
            &format!("  {streams}: busiest worker's CPU, %"),
            outcome.busiest_worker(),
        );
        let (letter, shares) = (self.shape.letter(), &outcome.shares);
        self.table.remark(&format!(
            "({letter}) {streams}: workers have {shares}; p50 {p50:.0}, p99 {p99:.0} µs"
        ));
        Ok(())
    }

    fn run(&mut self, plan: &Plan) -> anyhow::Result<Outcome> {
        load::run(&self.target, &mut self.child, plan, self.effort.span)
    }

    fn add(&mut self, name: &str, value: f64) {
        self.table.add(self.shape, name, value);
    }
}
