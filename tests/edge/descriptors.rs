//! Running out of file descriptors, in a process of its own.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use portcullis::listen::{self, Caps};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::limits;

#[test]
fn out_of_descriptors_the_listener_waits_and_then_goes_on() {
    let itself = std::env::current_exe().unwrap();
    let child = Command::new(itself)
        .args([
            "--exact",
            "descriptors::with_few_descriptors",
            "--ignored",
            "--nocapture",
        ])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(
        child.status.success() && said.contains("1 passed"),
        "{said}\n{}",
        String::from_utf8_lossy(&child.stderr)
    );
}

#[tokio::test]
#[ignore = "lowers the limits of its process: run by the test above"]
async fn with_few_descriptors() {
    let socket = listen::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = socket.local_addr().unwrap();
    let caps = Caps::new(&limits(10_000, 10_000));
    let held = Mutex::new(Vec::new());
    let stop = CancellationToken::new();
    let listener = TcpListener::from_std(socket).unwrap();
    let serving = listen::accept_loop(
        listener,
        "test".into(),
        Arc::clone(&caps),
        |io| held.lock().push(io),
        stop.clone(),
    );
    let clients = async {
        let mut waiting = Vec::new();
        for _ in 0..8 {
            waiting.push(TcpStream::connect(address).await.unwrap());
        }
        while held.lock().len() < waiting.len() {
            tokio::task::yield_now().await;
        }
        let more = TcpStream::connect(address);
        let _taken = take_descriptors_but(1);
        let _more = more.await.unwrap();
        while caps.counts().accept_faults < 3 {
            tokio::task::yield_now().await;
        }
        let before = caps.counts().accept_faults;
        assert!(before < 5, "{before} attempts within three pauses");
        held.lock().clear();
        while held.lock().is_empty() {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    let both = async { tokio::join!(serving, clients) };
    tokio::time::timeout(Duration::from_secs(30), both)
        .await
        .expect("it goes on");
}

/// Takes all descriptors but so many.
fn take_descriptors_but(spare: usize) -> Vec<File> {
    let limit = Rlimit {
        current: Some(256),
        ..getrlimit(Resource::Nofile)
    };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut taken: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len() - spare);
    taken
}
