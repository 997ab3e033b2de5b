//! What an idle TLS connection costs: a measurement, run by hand.
//!
//! `cargo test --test edge -- --ignored --nocapture what_an_idle_connection_costs`

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::process::Command;
use tokio::sync::Semaphore;
use tokio_util::task::TaskTracker;

use super::{Gate, Store, agree, client, limits};

/// As the program has it, so that the figure is the program's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONNECTIONS: u32 = 2000;
const REQUEST: usize = 100;

#[tokio::test]
#[ignore = "a measurement"]
async fn what_an_idle_connection_costs() {
    let store = Store::new().with("gw", &["gw.test"]);
    let mut gate = Gate::with(store.load(&["gw"]).unwrap(), &limits(10_000, 10_000), &[]);
    let before = proportional_kib();
    let mut clients = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "memory::clients", "--ignored", "--nocapture"])
        .env("GATE", gate.address.to_string())
        .env("CHAIN", store.chain("gw"))
        .stdin(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let tasks = TaskTracker::new();
    let idle = Arc::new(Semaphore::new(0));
    for _ in 0..CONNECTIONS {
        let secured = gate.outcome().await.unwrap();
        let idle = Arc::clone(&idle);
        tasks.spawn(async move {
            let (mut io, _facts, _tls, _permit) = secured.into_parts();
            io.write_all(b"x").await.unwrap();
            io.flush().await.unwrap();
            io.read_exact(&mut [0; REQUEST]).await.unwrap();
            idle.add_permits(1);
            assert_ne!(io.read(&mut [0]).await.ok(), Some(1), "clients say no more");
        });
    }
    idle.acquire_many(CONNECTIONS).await.unwrap().forget();
    tokio::task::yield_now().await;
    let during = proportional_kib();
    clients.stdin.take();
    clients.wait().await.unwrap();
    tasks.close();
    tasks.wait().await;
    let each = (during - before) as f64 / f64::from(CONNECTIONS);
    println!("{CONNECTIONS} idle connections: {each:.1} KiB each ({before} KiB before, {during} KiB with them)");
}

#[tokio::test]
#[ignore = "the clients of the measurement above"]
async fn clients() {
    let Ok(address) = std::env::var("GATE") else { return };
    let address: SocketAddr = address.parse().unwrap();
    let mut store = Store::new();
    std::fs::copy(std::env::var("CHAIN").unwrap(), store.chain("gw")).unwrap();
    store.add("gw");
    let tls = Arc::new(client(&store));
    let mut open = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut io = agree(&tls, TcpStream::connect(address).await.unwrap(), "gw.test")
            .await
            .unwrap();
        io.read_exact(&mut [0]).await.unwrap();
        io.write_all(&[0; REQUEST]).await.unwrap();
        open.push(io);
    }
    tokio::io::stdin().read_to_end(&mut Vec::new()).await.unwrap();
}

/// The process's share of memory, in KiB.
fn proportional_kib() -> u64 {
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup").unwrap();
    let line = rollup.lines().find(|line| line.starts_with("Pss:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}
