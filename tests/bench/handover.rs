//! What a handover of a full node costs: `cargo bench --bench handover`.
//!
//! 10,000 sessions, 2,000 of them with a tunnel, are handed over to another process of the same program. Printed are the
//! moment in which nobody is accepted, as new clients see it, the time in which control messages wait, all of the
//! handover, and the memory of both processes. `-- --sessions N`, `-- --tunnels N`, `-- --kept`
//! (with `state.persist_grants`), `-- --quick` (500 and 100). Two minutes.
//!
//! The clients are in this process, on the same cores. `docs/upgrades.md` has the figures.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a measurement that cannot go on has failed"
)]

#[path = "idle_sessions/process.rs"]
#[allow(dead_code, reason = "it is another measurement's too")]
mod process;
#[path = "../support/mod.rs"]
mod support;

use std::io::Write as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, scope, sleep};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use portcullis::client::{Session, Tunnel};
use portcullis::clock;
use serde_json::Value;
use support::client::{open_tunnel, sign_in};
use support::raw::{self, message, password_message, post_on, read_head};
use support::{Gateway, PASSWORD, Setup};
use tokio::runtime::Builder;

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return Ok(()); // `cargo test --all-targets` starts benchmarks too
    }
    let Wanted {
        sessions,
        tunnels,
        kept,
    } = Wanted::read(&arguments)?;
    process::raise_file_limit()?;
    tell(&format!(
        "# kernel {}, {} cores, load {}",
        process::kernel()?,
        std::thread::available_parallelism()?,
        process::load_average()?
    ))?;
    let setup = Setup::default()
        .section(
            "[limits]\nconnections_per_source = 50000\nhandshakes_per_source = 1000000\npending_logins = 50000\n\
             head_timeout = \"5 min\"\n[session]\nmax = 50000\nper_user = 50000\n\
             [authentication.throttle]\nper_user = 100000\nper_source = 100000\n",
        )
        .section(if kept { "[state]\npersist_grants = true\n" } else { "" })
        .desktop("desk", support::refusing(), "ssh");
    let gateway = Gateway::start(&setup);
    fill(&gateway, sessions - tunnels);
    let runtime = Builder::new_multi_thread().enable_all().build()?;
    let open = runtime.block_on(open_tunnels(&gateway, tunnels))?;
    let _heir = hand_over(&gateway, sessions)?;
    let lost = open.iter().filter(|(_, tunnel)| has_ended(&runtime, tunnel)).count();
    tell(&format!("# tunnels that were cut: {lost} of {}", open.len()))?;
    ensure!(lost == 0, "tunnels were cut");
    Ok(())
}

/// What the command line asks for.
struct Wanted {
    sessions: usize,
    tunnels: usize,
    kept: bool,
}

impl Wanted {
    fn read(arguments: &[String]) -> anyhow::Result<Self> {
        let mut wanted = Self {
            sessions: 10_000,
            tunnels: 2_000,
            kept: false,
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut number = || anyhow::Ok(arguments.next().context("a number is missing")?.parse()?);
            match argument.as_str() {
                "--bench" => {}
                "--quick" => (wanted.sessions, wanted.tunnels) = (500, 100),
                "--sessions" => wanted.sessions = number()?,
                "--tunnels" => wanted.tunnels = number()?,
                "--kept" => wanted.kept = true,
                other => bail!("{other} is not known; --sessions N, --tunnels N, --kept, --quick are"),
            }
        }
        ensure!(wanted.tunnels <= wanted.sessions, "each tunnel needs a session");
        Ok(wanted)
    }
}

/// Users sign in and stay away.
fn fill(gateway: &Gateway, sessions: usize) {
    scope(|scope| {
        for thread in 0..CLIENTS {
            scope.spawn(move || {
                let mut stream = raw::tls(gateway);
                let share = (thread..sessions).step_by(CLIENTS);
                for _ in share {
                    let first = post_on(&mut stream, None, message("<get-configuration/>").as_bytes());
                    let cookie = first.session_cookie().unwrap();
                    let tunnel = password_message("ann", PASSWORD, "<get-tunnel-connection/>");
                    let answer = post_on(&mut stream, Some(&cookie), tunnel.as_bytes());
                    assert!(answer.text().contains("<connection-id>"), "{}", answer.text());
                }
            });
        }
    });
}

async fn open_tunnels(gateway: &Gateway, tunnels: usize) -> anyhow::Result<Vec<(Session, Tunnel)>> {
    let mut open = Vec::new();
    while open.len() < tunnels {
        let some = CLIENTS.min(tunnels - open.len());
        let entering = (0..some).map(|_| async {
            let mut session = sign_in(gateway).await;
            let (tunnel, _unread) = open_tunnel(&mut session).await;
            (session, tunnel)
        });
        open.extend(futures_util::future::join_all(entering).await);
    }
    Ok(open)
}

fn has_ended(runtime: &tokio::runtime::Runtime, tunnel: &Tunnel) -> bool {
    let soon = async {
        tokio::time::timeout(Duration::from_millis(1), tunnel.ended())
            .await
            .is_ok()
    };
    runtime.block_on(soon)
}

/// Gives the new process; the old one has the tunnels.
fn hand_over(gateway: &Gateway, sessions: usize) -> anyhow::Result<Heir> {
    let old = process::Process::new(gateway.pid());
    let memory = old.memory()?;
    let (accepted, controlled) = (Probe::on(gateway, ask_anew), Probe::on(gateway, ask_control));
    sleep(Duration::from_secs(3));
    let (quiet, quiet_control) = (accepted.longest(), controlled.longest());
    let began = clock::now();
    let binary = env!("CARGO_BIN_EXE_portcullis");
    let output = gateway.operator(&["upgrade", "--json", "--binary", binary]).output()?;
    let took = clock::now() - began;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_slice(&output.stdout)?;
    let pid = told["pid"].as_u64().context("no process id")?;
    let heir = Heir(pid.try_into()?);
    sleep(Duration::from_secs(2));
    tell(&format!(
        "# new connections, to their answer: at most {:.1} ms before, {:.1} ms in the handover",
        millis(quiet),
        millis(accepted.longest())
    ))?;
    tell(&format!(
        "# control messages, to their answer: at most {:.1} ms before, {:.1} ms in the handover",
        millis(quiet_control),
        millis(controlled.longest())
    ))?;
    let line = gateway.wait_for("the handover", |line| line["message"] == "the new process serves");
    tell(&format!(
        "# accepting nobody: {} ms; from the wish to its answer: {:.0} ms",
        line["not_accepting_ms"],
        millis(took)
    ))?;
    let new = process::Process::new(heir.0);
    tell(&format!(
        "# memory (PSS): the old process {} KiB, after the handover {} KiB; the new one {} KiB",
        memory.pss,
        old.memory()?.pss,
        new.memory()?.pss
    ))?;
    let (asked, control) = (accepted.end(), controlled.end());
    tell(&format!(
        "# asked {asked} times on new connections, {control} by control messages, each answered"
    ))?;
    let listed = gateway.operator(&["sessions", "list", "--json"]).output()?;
    let listed: Value = serde_json::from_slice(&listed.stdout)?;
    let count = listed["sessions"].as_array().map_or(0, Vec::len);
    tell(&format!("# sessions in the new process: {count} of {sessions}"))?;
    ensure!(count == sessions, "sessions were lost");
    Ok(heir)
}

/// Asks over and over, and notes the longest wait. Whoever is not answered ends the measurement.
struct Probe {
    stop: Arc<AtomicBool>,
    longest: Arc<parking_lot::Mutex<Duration>>,
    thread: JoinHandle<usize>,
}

impl Probe {
    fn on(gateway: &Gateway, ask: fn(std::net::SocketAddr, &std::path::Path)) -> Self {
        let (stop, longest) = (
            Arc::new(AtomicBool::new(false)),
            Arc::<parking_lot::Mutex<Duration>>::default(),
        );
        let (address, chain) = (gateway.address, gateway.chain());
        let (stopped, noted) = (stop.clone(), longest.clone());
        let thread = std::thread::spawn(move || {
            let mut asked = 0;
            while !stopped.load(Ordering::SeqCst) {
                let began = clock::now();
                ask(address, &chain);
                let took = clock::now() - began;
                let mut longest = noted.lock();
                *longest = took.max(*longest);
                drop(longest);
                asked += 1;
                sleep(Duration::from_millis(2));
            }
            asked
        });
        Self { stop, longest, thread }
    }

    /// The longest wait since this was asked.
    fn longest(&self) -> Duration {
        std::mem::take(&mut *self.longest.lock())
    }

    fn end(self) -> usize {
        self.stop.store(true, Ordering::SeqCst);
        self.thread.join().unwrap()
    }
}

fn ask_anew(address: std::net::SocketAddr, chain: &std::path::Path) {
    let mut stream = raw::tls_over(std::net::TcpStream::connect(address).unwrap(), chain);
    stream
        .write_all(b"HEAD /favicon.ico HTTP/1.1\r\nHost: x\r\n\r\n")
        .unwrap();
    assert_eq!(read_head(&mut stream).status, 200);
}

fn ask_control(address: std::net::SocketAddr, chain: &std::path::Path) {
    let mut stream = raw::tls_over(std::net::TcpStream::connect(address).unwrap(), chain);
    let answer = post_on(&mut stream, None, message("<get-configuration/>").as_bytes());
    assert_eq!(answer.status, 200);
}

/// The process that took over. Dropped, it is killed.
struct Heir(u32);

impl Drop for Heir {
    fn drop(&mut self) {
        let _ = Command::new("kill").arg("-KILL").arg(self.0.to_string()).status();
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn tell(line: &str) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{line}").context("cannot print")
}

const CLIENTS: usize = 16;
