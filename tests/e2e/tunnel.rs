//! The tunnel under what networks, programs and operators do to it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;

use super::connect::{Door, connect, sessions};
use super::faulty::Faulty;
use super::peer::{descriptors, wait_until};
use super::random::{assert_same, octets};
use super::ssh::by_proxy_at;
use super::sshd::Sshd;
use crate::support::{Gateway, PATIENCE, Setup, Target, read_all};

#[test]
fn a_transfer_goes_on_where_it_was_after_the_connection_broke() {
    let sshd = Sshd::start();
    let gateway = Gateway::start(&Setup::default().desktop("shell", sshd.address, "ssh"));
    let network = Faulty::before(gateway.address);
    let (sent, stored) = (octets(2, TRANSFER), sshd.folder().join("stored"));

    network.fail_after(TRANSFER / 3);
    let mut up = ssh(&sshd, &gateway, network.address);
    let mut up = up
        .arg(format!("cat >'{}'", stored.display()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    up.stdin.take().unwrap().write_all(&sent).unwrap();
    assert!(up.wait().unwrap().success());
    assert_same(&fs::read(&stored).unwrap(), &sent);
    assert_eq!(network.failures(), 1);

    network.fail_after(TRANSFER / 3);
    let mut down = ssh(&sshd, &gateway, network.address);
    let down = down
        .arg(format!("cat '{}'", stored.display()))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&down.stderr);
    assert!(down.status.success(), "{words}");
    assert_same(&down.stdout, &sent);
    assert_eq!(network.failures(), 2);
    assert!(words.contains("nothing was lost"), "the user is told: {words}");
    wait_until(
        || format!("two tunnels with one reconnect each\n{}", gateway.log_text()),
        || {
            let lines = gateway.lines();
            let closed = lines
                .iter()
                .filter(|line| line["message"] == "tunnel closed" && line["reconnects"] == 1);
            (closed.count() == 2).then_some(())
        },
    );
}

#[test]
fn a_transfer_through_a_port_goes_on_after_the_connection_broke_again_and_again() {
    let desktop = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", desktop.address, "tcp"));
    let network = Faulty::before(gateway.address);
    let door = Door::open_at(network.address, &gateway, "shell");
    let stream = TcpStream::connect(door.address).unwrap();
    for round in 1..=3 {
        network.fail_after(TRANSFER / 2);
        let sent = octets(round, TRANSFER);
        assert_same(&echoed(&stream, &sent), &sent);
    }
    assert_eq!(network.failures(), 3);
}

#[test]
fn an_answer_arrives_whole_after_the_program_has_said_all() {
    let answer = octets(3, MEBIBYTE);
    let text = answer.clone();
    let desktop = Target::new(move |mut stream| {
        stream.read_exact(&mut vec![0; MEBIBYTE]).unwrap();
        thread::sleep(Duration::from_secs(2));
        stream.write_all(&text).unwrap();
    });
    let gateway = Gateway::start(&Setup::default().desktop("shell", desktop.address, "tcp"));
    let question = octets(4, MEBIBYTE);

    let door = Door::open(&gateway, "shell");
    let mut stream = TcpStream::connect(door.address).unwrap();
    stream.write_all(&question).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_same(&read_all(stream), &answer);

    let mut piped = connect(&gateway, &["--desktop", "shell", "--stdio"]);
    let mut piped = piped
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(&question).unwrap();
    assert_same(&piped.wait_with_output().unwrap().stdout, &answer);
}

#[test]
fn three_hundred_programs_that_say_all_and_leave_leave_nothing_behind() {
    let desktop = Target::new(|mut stream| {
        stream.read_exact(&mut [0; 1000]).unwrap();
        stream.write_all(b"done").unwrap();
    });
    let gateway = Gateway::start(&Setup::default().desktop("shell", desktop.address, "tcp"));
    let door = Door::open(&gateway, "shell");
    let open = || (descriptors(gateway.pid()), descriptors(door.peer.pid()));
    let before = open();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(door.address).unwrap();
        stream.write_all(&[7; 1000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(stream), b"done");
    }
    assert_eq!(desktop.dialled(), 300);
    wait_until(
        || format!("{:?} descriptors, before {before:?}", open()),
        || (open().0 <= before.0 && open().1 <= before.1).then_some(()),
    );
}

#[test]
fn three_hundred_desktops_that_wait_for_the_end_see_it() {
    let ends = Arc::new(AtomicUsize::new(0));
    let seen = ends.clone();
    let desktop = Target::new(move |stream| {
        assert_eq!(read_all(stream).len(), 1000);
        seen.fetch_add(1, Ordering::SeqCst);
    });
    let gateway = Gateway::start(&Setup::default().desktop("shell", desktop.address, "tcp"));
    let door = Door::open(&gateway, "shell");
    let open = || (descriptors(gateway.pid()), descriptors(door.peer.pid()));
    let before = open();
    for _ in 0..300 {
        let mut stream = TcpStream::connect(door.address).unwrap();
        stream.write_all(&[7; 1000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        assert_eq!(read_all(stream), b"");
    }
    for _ in 0..300 {
        // A program that just leaves.
        TcpStream::connect(door.address).unwrap().write_all(&[7; 1000]).unwrap();
    }
    let state = || (ends.load(Ordering::SeqCst), open());
    wait_until(
        || format!("{:?}, wanted {before:?}", state()),
        || (state() == (600, before)).then_some(()),
    );
}

#[test]
fn a_client_that_was_killed_leaves_nothing_behind() {
    let ends = Arc::new(AtomicUsize::new(0));
    let seen = ends.clone();
    let desktop = Target::new(move |mut stream| {
        let mut back = stream.try_clone().unwrap();
        let _ = std::io::copy(&mut stream, &mut back);
        seen.fetch_add(1, Ordering::SeqCst);
    });
    let short = "[tunnel]\nlost_contact = \"1 s\"\nreconnect_window = \"1 s\"\n";
    let gateway = Gateway::start(&Setup::default().section(short).desktop("shell", desktop.address, "tcp"));
    let before = descriptors(gateway.pid());
    let mut door = Door::open(&gateway, "shell");
    let programs: Vec<_> = (0..8).map(|_| TcpStream::connect(door.address).unwrap()).collect();
    for stream in &programs {
        assert_same(&echoed(stream, b"alive"), b"alive");
    }
    assert!(descriptors(gateway.pid()) >= before + 9);
    door.peer.signal(Signal::KILL);
    door.peer.wait();
    gateway.wait_for("the end of the tunnel", |line| {
        line["message"] == "tunnel closed" && line["reason"] == "lost_contact"
    });
    let state = || (ends.load(Ordering::SeqCst), descriptors(gateway.pid()));
    wait_until(
        || format!("{:?}, wanted (8, {before})", state()),
        || (state().0 == 8 && state().1 <= before).then_some(()),
    );
    println!("sessions left: {}", sessions(&gateway));
}

#[test]
fn a_transfer_goes_on_while_the_configuration_is_read_again_whether_it_is_right_or_wrong() {
    let (sshd, other) = (Sshd::start(), Target::echo());
    let setup = Setup::default().desktop("shell", sshd.address, "ssh");
    let gateway = Gateway::start(&setup);
    let changed = setup.user("bob", "").desktop("another", other.address, "tcp");
    let (sent, stored) = (octets(5, TRANSFER), sshd.folder().join("stored"));

    let mut up = ssh(&sshd, &gateway, gateway.address);
    let mut up = up
        .arg(format!("cat >'{}'", stored.display()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = up.stdin.take().unwrap();
    let (first, rest) = sent.split_at(TRANSFER / 4);
    let (second, third) = rest.split_at(TRANSFER / 4);
    input.write_all(first).unwrap();
    let word = gateway.reload(&changed);
    assert!(
        word["message"].as_str().unwrap().starts_with("configuration applied"),
        "{word}"
    );
    input.write_all(second).unwrap();
    let word = gateway.reload_text("[node\nname = 7\n");
    assert!(
        word["message"].as_str().unwrap().starts_with("configuration refused"),
        "{word}"
    );
    input.write_all(third).unwrap();
    drop(input);
    assert!(up.wait().unwrap().success());
    assert_same(&fs::read(&stored).unwrap(), &sent);

    let another = Door::open(&gateway, "another");
    assert_same(
        &echoed(&TcpStream::connect(another.address).unwrap(), b"reached"),
        b"reached",
    );
}

/// Sends octets and takes back as many at the same time.
fn echoed(stream: &TcpStream, sent: &[u8]) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut to, mut from) = (stream, stream);
    thread::scope(|scope| {
        scope.spawn(move || to.write_all(sent).unwrap());
        let mut back = vec![0; sent.len()];
        from.read_exact(&mut back).unwrap();
        back
    })
}

/// ssh to the desktop, with the gateway reached at this address.
fn ssh(sshd: &Sshd, gateway: &Gateway, to: SocketAddr) -> Command {
    let mut ssh = sshd.client("ssh");
    by_proxy_at(&mut ssh, to, gateway).arg("desktop");
    ssh
}

const MEBIBYTE: usize = 1024 * 1024;
const TRANSFER: usize = 12 * MEBIBYTE;
