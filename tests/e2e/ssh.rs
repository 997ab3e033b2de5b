//! OpenSSH, client and server.

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;

use super::connect::{connect, connect_to, proxy_command, sessions};
use super::peer::{run, wait_until};
use super::random::{assert_same, octets};
use super::sshd::{Sshd, free_address};
use crate::support::{Gateway, Setup};

#[test]
fn ssh_reaches_the_desktop_by_its_proxy_command_and_each_session_ends_with_it() {
    let (sshd, gateway) = start();
    // ssh lets go of its proxy in two ways at a time, and which comes first is chance.
    for _ in 0..TIMES {
        let output = ssh(&sshd, &gateway).args(["-q", "true"]).output().unwrap();
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "an end is no fault");
    }
    wait_until(
        || format!("all sessions are logged out\n{}", gateway.log_text()),
        || {
            let lines = gateway.lines();
            let ended = lines
                .iter()
                .filter(|line| line["message"] == "session closed" && line["reason"] == "logout");
            (ended.count() == TIMES).then_some(())
        },
    );
    assert_eq!(sessions(&gateway), 0);
}

#[test]
fn fifty_mebibytes_come_through_whole_both_ways() {
    let (sshd, gateway) = start();
    let sent = octets(1, FIFTY_MEBIBYTES);
    let stored = sshd.folder().join("stored");

    let begun = portcullis::clock::now();
    let mut up = ssh(&sshd, &gateway);
    let mut up = up
        .arg(format!("cat >'{}'", stored.display()))
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    up.stdin.take().unwrap().write_all(&sent).unwrap();
    assert!(up.wait().unwrap().success());
    report("ssh, up", begun);
    assert_same(&fs::read(&stored).unwrap(), &sent);

    let fetched = sshd.folder().join("fetched");
    let begun = portcullis::clock::now();
    let from = format!("desktop:{}", stored.display());
    run(by_proxy(&mut sshd.client("scp"), &gateway)
        .arg("-q")
        .arg(from)
        .arg(&fetched));
    report("scp, down", begun);
    assert_same(&fs::read(fetched).unwrap(), &sent);

    let begun = portcullis::clock::now();
    let (from, to) = (&stored, format!("desktop:{}.again", stored.display()));
    run(by_proxy(&mut sshd.client("scp"), &gateway).arg("-q").arg(from).arg(to));
    report("scp, up", begun);
    assert_same(&fs::read(stored.with_extension("again")).unwrap(), &sent);
    assert_logged_out(&gateway);
}

#[test]
fn a_command_is_run_with_the_address_of_the_desktop_and_its_end_is_told() {
    let (sshd, gateway) = start();
    let ssh = sshd.client("ssh");
    let words = |last| {
        let mut words = vec!["--desktop", "shell", "--", ssh.get_program().to_str().unwrap()];
        words.extend(ssh.get_args().map(|word| word.to_str().unwrap()));
        words.extend(["-p", "{port}", "{host}", last]);
        words
    };
    run(&mut connect(&gateway, &words("true")));
    let failed = connect(&gateway, &words("exit 3")).output().unwrap();
    assert_eq!(failed.status.code(), Some(1));
    assert_logged_out(&gateway);
}

#[test]
fn scripts_can_tell_a_wrong_password_from_a_gateway_that_is_not_there() {
    let (_sshd, gateway) = start();
    let mut wrong = connect(&gateway, &["--desktop", "shell", "--stdio"]);
    let wrong = wrong
        .env("PORTCULLIS_PASSWORD", "let me in")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(
        wrong.status.code(),
        Some(5),
        "{}",
        String::from_utf8_lossy(&wrong.stderr)
    );
    assert!(wrong.stdout.is_empty(), "standard output belongs to the desktop");

    let mut nobody = connect_to(free_address(), &gateway, &["--desktop", "shell", "--stdio"]);
    let nobody = nobody.stdin(Stdio::null()).output().unwrap();
    assert_eq!(
        nobody.status.code(),
        Some(4),
        "{}",
        String::from_utf8_lossy(&nobody.stderr)
    );
    assert_eq!(sessions(&gateway), 0);
}

#[test]
fn an_unknown_certificate_is_not_trusted_without_a_word_and_is_by_its_thumbprint() {
    let (_sshd, gateway) = start();
    let home = TempDir::new().unwrap();
    let list = |more: &[&str]| {
        let mut command = crate::support::portcullis();
        let address = gateway.address.to_string();
        command
            .args(["connect", &address, "--user", "ann", "--list"])
            .args(more);
        command
            .env("PORTCULLIS_PASSWORD", crate::support::PASSWORD)
            .env("HOME", home.path());
        command
            .env_remove("XDG_CONFIG_HOME")
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_STATE_HOME");
        command.stdin(Stdio::null()).output().unwrap()
    };
    let refused = list(&[]);
    assert_eq!(refused.status.code(), Some(5));
    let thumbprint = thumbprint(&gateway);
    let words = String::from_utf8(refused.stderr).unwrap();
    let bare = |text: &str| text.to_uppercase().replace(':', "");
    assert!(
        bare(&words).contains(&bare(&thumbprint)),
        "it shows what to compare: {words}"
    );
    assert_eq!(list(&["--thumbprint", &thumbprint]).status.code(), Some(0));
}

/// What OpenSSL says of the gateway's certificate.
fn thumbprint(gateway: &Gateway) -> String {
    let mut openssl = super::peer::tool("openssl");
    openssl
        .args(["x509", "-noout", "-fingerprint", "-sha256", "-in"])
        .arg(gateway.chain());
    run(&mut openssl).trim().rsplit('=').next().unwrap().to_owned()
}

fn start() -> (Sshd, Gateway) {
    let sshd = Sshd::start();
    let gateway = Gateway::start(&Setup::default().desktop("shell", sshd.address, "ssh"));
    (sshd, gateway)
}

/// ssh to the desktop, which has no address of its own for it.
fn ssh(sshd: &Sshd, gateway: &Gateway) -> Command {
    let mut ssh = sshd.client("ssh");
    by_proxy(&mut ssh, gateway).arg("desktop");
    ssh
}

fn by_proxy<'a>(client: &'a mut Command, gateway: &Gateway) -> &'a mut Command {
    by_proxy_at(client, gateway.address, gateway)
}

/// Has a client of ssh go by `connect`, which reaches the gateway at this address.
pub(super) fn by_proxy_at<'a>(client: &'a mut Command, to: SocketAddr, gateway: &Gateway) -> &'a mut Command {
    let command = proxy_command(to, gateway, "shell");
    client.arg("-o").arg(format!("ProxyCommand={command}"))
}

fn assert_logged_out(gateway: &Gateway) {
    gateway.wait_for("the end of the session", |line| line["reason"] == "logout");
    wait_until(
        || "a session is left".to_owned(),
        || (sessions(gateway) == 0).then_some(()),
    );
}

fn report(what: &str, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    println!("{what}: {:.1} MiB/s", 50.0 / seconds);
}

const TIMES: usize = 10;
const FIFTY_MEBIBYTES: usize = 50 * 1024 * 1024;
