//! xrdp and FreeRDP.

use std::net::SocketAddr;

use rustix::process::Signal;
use tempfile::TempDir;

use super::connect::{Door, Held, sessions};
use super::peer::Peer;
use super::screen::{Colour, Screen, fill, shown_on};
use super::sshd::free_address;
use super::xrdp::{USER, USER_PASSWORD, Xrdp, can_sign_users_in};
use super::xvnc::Xvnc;
use crate::support::{Gateway, Setup};

#[test]
fn a_desktop_is_shown_by_rdp_with_what_changes_on_it() {
    let xvnc = Xvnc::start(PURPLE);
    let xrdp = Xrdp::before(xvnc.address);
    let mut user = User::at(&xrdp);
    for colour in [PURPLE, OCHRE] {
        fill(&xvnc.display, colour);
        user.client.wait_for("the desktop is shown", || {
            user.screen.area_of(colour).fills(800, 600).then_some(())
        });
    }
}

#[test]
fn a_user_signs_in_by_rdp_and_works_in_a_session_of_their_own() {
    if !can_sign_users_in() {
        println!("Left out: the sign-in of another user needs root.");
        return;
    }
    let xrdp = Xrdp::with_sessions(PURPLE);
    let mut user = User::at(&xrdp);
    let session = user.client.wait_for("a session starts", || xrdp.session());
    assert!(session.starts_with(&format!("{USER}\n")), "{session}\n{}", xrdp.said());
    assert!(
        session.contains("Width: 800\n") && session.contains("Height: 600\n"),
        "{session}"
    );
    user.client.wait_for("it is shown", || {
        user.screen.area_of(PURPLE).fills(800, 600).then_some(())
    });
}

/// The same program, with no program of ours beside it.
#[test]
fn a_client_with_a_preconnection_blob_reaches_the_desktop_while_the_session_lives() {
    let xvnc = Xvnc::start(PURPLE);
    let xrdp = Xrdp::before(xvnc.address);
    let rdp = format!("[rdp]\nbind = [\"{}\"]\n", free_address());
    let gateway = Gateway::start(&Setup::default().section(&rdp).desktop("office", xrdp.address, "rdp"));
    let mut held = Held::launch(&gateway, "office");
    assert_eq!(held.address, gateway.rdp_addresses()[0]);
    let blob = format!("/pcb:{}", held.blob);
    let (mut client, screen, _home) = freerdp(held.address, Some(&blob));
    for colour in [PURPLE, OCHRE] {
        fill(&xvnc.display, colour);
        client.wait_for("the desktop is shown", || {
            screen.area_of(colour).fills(800, 600).then_some(())
        });
    }

    held.peer.signal(Signal::INT);
    held.peer.wait();
    assert_eq!(sessions(&gateway), 0);
    gateway.wait_for("the end of its connection", |line| {
        line["listener"] == "rdp" && line["reason"] == "logout"
    });
    drop(client);
    let made_up = format!("/pcb:gw-1.{}.{}", "A".repeat(43), "A".repeat(11));
    for (blob, reasons) in [
        (Some(&*blob), &["revoked"][..]),
        (Some(&*made_up), &["unknown_token", "malformed"]),
        (Some("/pcb:hello"), &["malformed"]),
        (None, &["no_token"]),
    ] {
        let before = gateway.lines().len();
        let (mut refused, _screen, _home) = freerdp(held.address, blob);
        assert!(!refused.wait().success(), "{reasons:?}");
        gateway.wait_for_after(before, &format!("one of {reasons:?}"), |line| {
            line["listener"] == "rdp" && reasons.iter().any(|reason| line["reason"] == *reason)
        });
    }
    assert!(!gateway.log_text().contains(&held.blob), "the blob is in the log");
}

/// FreeRDP on a screen of its own, with a home of its own.
fn freerdp(address: SocketAddr, blob: Option<&str>) -> (Peer, Screen, TempDir) {
    let screen = Screen::start(1000, 700);
    let home = TempDir::new().unwrap();
    let mut command = shown_on(&screen.display, "xfreerdp", home.path());
    command.arg(format!("/v:{address}"));
    command.arg(format!("/u:{USER}")).arg(format!("/p:{USER_PASSWORD}"));
    command.args(["/cert:ignore", "/size:800x600", "/bpp:24"]).args(blob);
    (Peer::start(&mut command, home.path()), screen, home)
}

/// Who uses FreeRDP, through the gateway, on a screen of their own.
struct User {
    client: Peer,
    screen: Screen,
    _door: Door,
    _gateway: Gateway,
    _home: TempDir,
}

impl User {
    fn at(xrdp: &Xrdp) -> Self {
        let gateway = Gateway::start(&Setup::default().desktop("office", xrdp.address, "rdp"));
        let door = Door::open(&gateway, "office");
        let (client, screen, home) = freerdp(door.address, None);
        Self {
            client,
            screen,
            _door: door,
            _gateway: gateway,
            _home: home,
        }
    }
}

const PURPLE: Colour = [0x66, 0x33, 0x99];
const OCHRE: Colour = [0xcc, 0x77, 0x22];
