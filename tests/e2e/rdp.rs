//! xrdp and FreeRDP.

use tempfile::TempDir;

use super::connect::Door;
use super::peer::Peer;
use super::screen::{Colour, Screen, fill, shown_on};
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
        let screen = Screen::start(1000, 700);
        let home = TempDir::new().unwrap();
        let mut command = shown_on(&screen.display, "xfreerdp", home.path());
        command.arg(format!("/v:{}", door.address));
        command.arg(format!("/u:{USER}")).arg(format!("/p:{USER_PASSWORD}"));
        command.args(["/cert:ignore", "/size:800x600", "/bpp:24"]);
        Self {
            client: Peer::start(&mut command, home.path()),
            screen,
            _door: door,
            _gateway: gateway,
            _home: home,
        }
    }
}

const PURPLE: Colour = [0x66, 0x33, 0x99];
const OCHRE: Colour = [0xcc, 0x77, 0x22];
