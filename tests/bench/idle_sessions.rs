//! What sessions and tunnels cost one node.
//!
//! - `cargo bench --bench idle_sessions`: 2,000 users sign in and open their tunnels, leave them idle, and log out. Time,
//!   CPU, memory and descriptors of the node at each point; two and a half minutes. `-- --sessions N`, `-- --quick` (200).
//! - `cargo bench --bench idle_sessions -- --transfer`: bulk and ping-pong through one tunnel, beside HAProxy where it is
//!   installed; half a minute, `--quick` less.
//!
//! The node is the program itself, in a process of its own, with a configuration of its own and the product's cost of
//! password hashes. The clients are the library's, in this process, on the same cores: trust the node's CPU and
//! memory, and the wall times only on a machine that does nothing else.
//!
//! `docs/operations.md` ("Limits and memory") has the figures.

#[path = "idle_sessions/crowd.rs"]
mod crowd;
#[path = "idle_sessions/node.rs"]
mod node;
#[path = "idle_sessions/peer.rs"]
mod peer;
#[path = "idle_sessions/process.rs"]
mod process;
#[path = "idle_sessions/target.rs"]
mod target;
#[path = "idle_sessions/transfer.rs"]
mod transfer;

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tokio::runtime::{Builder, Runtime};

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(()); // `cargo test --all-targets` starts benchmarks too
    }
    let wanted = Wanted::read(&arguments)?;
    process::raise_file_limit()?;
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    tell(&format!(
        "# kernel {}, {} cores, load {}",
        process::kernel()?,
        std::thread::available_parallelism()?,
        process::load_average()?
    ))?;
    match wanted.measure {
        Measure::Idle { sessions } => idle(&runtime, sessions, wanted.quick),
        Measure::Transfer => transfer::measure(&runtime, wanted.quick),
    }
}

/// What the command line asks for.
struct Wanted {
    measure: Measure,
    quick: bool,
}

enum Measure {
    Idle { sessions: usize },
    Transfer,
}

impl Wanted {
    fn read(arguments: &[String]) -> anyhow::Result<Self> {
        let (mut sessions, mut transfer, mut quick) = (None, false, false);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--bench" => {}
                "--quick" => quick = true,
                "--transfer" => transfer = true,
                "--sessions" => sessions = Some(arguments.next().context("--sessions needs a number")?.parse()?),
                other => bail!("{other} is not known; --sessions N, --transfer, --quick are"),
            }
        }
        let measure = if transfer {
            Measure::Transfer
        } else {
            let sessions = sessions.unwrap_or(if quick { 200 } else { 2_000 });
            Measure::Idle { sessions }
        };
        Ok(Self { measure, quick })
    }
}

/// A crowd signs in, is idle and logs out.
fn idle(runtime: &Runtime, sessions: usize, quick: bool) -> anyhow::Result<()> {
    let terms = if quick {
        node::Terms::SHORT
    } else {
        node::Terms::DEFAULT
    };
    // Without a desktop nobody may sign in; nobody dials this one.
    let desktop = ("desk", SocketAddr::from(([127, 0, 0, 1], 9)));
    let node = node::Node::start(sessions + 1, &terms, &[desktop])?;
    // Whatever is made once and kept is not charged to the sessions.
    runtime
        .block_on(crowd::Crowd::sign_in(&node, sessions..sessions + 1)?)?
        .log_out(runtime)?;
    let mut log = Log::new(node.process(), sessions)?;
    log.tell("one came and went")?;

    let before = node.process().cpu()?;
    let crowd = runtime.block_on(crowd::Crowd::sign_in(&node, 0..sessions)?)?;
    let spent = node.process().cpu()?.since(before);
    log.tell("all tunnels open, control connections too")?;
    storm(&crowd, spent, sessions)?;

    let patience = terms.head_timeout + Duration::from_secs(5);
    node.process()
        .wait_for_descriptors(log.descriptors + sessions, patience)?;
    log.tell("control connections closed by the node, idle")?;

    let before = node.process().cpu()?;
    let idle = 3 * terms.echo_interval();
    std::thread::sleep(idle);
    let spent = node.process().cpu()?.since(before);
    log.tell(&format!("after {} s of echoes", idle.as_secs()))?;
    let microseconds = spent.total().as_secs_f64() * 1e6 / idle.as_secs_f64() / sessions as f64;
    tell(&format!("# idle: {microseconds:.1} µs CPU a session and second"))?;

    crowd.log_out(runtime)?;
    std::thread::sleep(Duration::from_secs(10));
    log.tell("10 s after all logged out")
}

/// What the sign-ins took.
fn storm(crowd: &crowd::Crowd, spent: process::Cpu, sessions: usize) -> anyhow::Result<()> {
    let each = |part: Duration| part.as_secs_f64() * 1e3 / sessions as f64;
    let seconds = crowd.took.as_secs_f64();
    tell(&format!(
        "# {sessions} sign-ins with tunnels in {seconds:.1} s: {:.0} a second, {:.2} ms each; one took p50 {:.0}, p99 {:.0} ms",
        sessions as f64 / seconds,
        seconds * 1e3 / sessions as f64,
        crowd.percentile(0.50),
        crowd.percentile(0.99),
    ))?;
    tell(&format!(
        "# the node's CPU: {:.1} s, {:.2} ms each, of which password hashes {:.2}, all else {:.2}",
        spent.total().as_secs_f64(),
        each(spent.total()),
        each(spent.hashing),
        each(spent.rest),
    ))
}

/// A line for each point at which the node is looked at.
struct Log<'a> {
    process: &'a process::Process,
    sessions: usize,
    base: process::Memory,
    descriptors: usize,
}

impl<'a> Log<'a> {
    fn new(process: &'a process::Process, sessions: usize) -> anyhow::Result<Self> {
        let base = process.memory()?;
        tell(&format!(
            "{:<46} {:>9} {:>9} {:>12} {:>7} {:>8}",
            "the node", "RSS KiB", "PSS KiB", "KiB/session", "fds", "threads"
        ))?;
        Ok(Self {
            process,
            sessions,
            base,
            descriptors: process.descriptors()?,
        })
    }

    fn tell(&mut self, point: &str) -> anyhow::Result<()> {
        let memory = self.process.memory()?;
        let grown = memory.pss as f64 - self.base.pss as f64;
        tell(&format!(
            "{point:<46} {:>9} {:>9} {:>12.1} {:>7} {:>8}",
            memory.rss,
            memory.pss,
            grown / self.sessions as f64,
            self.process.descriptors()?,
            self.process.threads()?,
        ))
    }
}

fn tell(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("cannot print")
}
