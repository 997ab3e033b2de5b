//! TigerVNC, server and viewer; and the clipboard, with a client that says exactly what it is to say.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Stdio;

use tempfile::TempDir;

use super::connect::Door;
use super::peer::{Peer, wait_until};
use super::random::{assert_same, letters};
use super::rfb::Rfb;
use super::screen::{Colour, Screen, fill, shown_on};
use super::xvnc::Xvnc;
use crate::support::{Gateway, Setup, Target, read_all};

#[test]
fn a_viewer_shows_the_desktop_and_what_changes_on_it() {
    let (xvnc, gateway) = start();
    let door = Door::open(&gateway, "screen");
    let screen = Screen::start(800, 600);
    let home = TempDir::new().unwrap();
    let mut command = shown_on(&screen.display, "xtigervncviewer", home.path());
    command.args(["-SecurityTypes", "None", "-RemoteResize=0"]);
    let mut viewer = Peer::start(command.arg(viewer_address(&door)), home.path());
    for colour in [BLUE, GREEN] {
        fill(&xvnc.display, colour);
        viewer.wait_for("the desktop is shown", || {
            screen.area_of(colour).fills(640, 480).then_some(())
        });
    }
    assert_eq!(
        screen.area_of(BLUE).pixels,
        0,
        "nothing is left of what was shown before"
    );
}

#[test]
fn a_picture_comes_pixel_by_pixel() {
    let (_xvnc, gateway) = start();
    let door = Door::open(&gateway, "screen");
    let mut client = Rfb::connect(door.address);
    assert_eq!(client.size, (640, 480));
    assert_eq!(client.picture().area_of(BLUE).pixels, 640 * 480);
}

#[test]
fn a_cut_text_of_any_length_arrives_whole_at_the_desktop_and_the_session_lives() {
    let (xvnc, gateway) = start();
    let door = Door::open(&gateway, "screen");
    let mut client = Rfb::connect(door.address);
    for (seed, length) in (1..).zip(LENGTHS) {
        let sent = letters(seed, length);
        client.send_cut_text(&sent);
        // The desktop still has the text before until it has read this one.
        let arrived = wait_until(
            || format!("no text of {length} octets on the clipboard\n{}", xvnc.said()),
            || Some(xvnc.xclip(&["-o"]).output().unwrap().stdout).filter(|text| text.len() == length),
        );
        assert_same(&arrived, &sent);
    }
    assert_eq!(client.picture().area_of(BLUE).pixels, 640 * 480);
}

#[test]
fn a_cut_text_of_any_length_arrives_whole_from_the_desktop_and_the_session_lives() {
    let (xvnc, gateway) = start();
    let door = Door::open(&gateway, "screen");
    let mut client = Rfb::connect(door.address);
    // Texts come to those who are there: it has to be known that this client is.
    client.picture();
    for (seed, length) in (1..).zip([1023, 1024, 1025, ONE_PIECE]) {
        let sent = letters(seed, length);
        let mut owner = xvnc
            .xclip(&["-i", "-quiet"])
            .stdin(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        owner.stdin.take().unwrap().write_all(&sent).unwrap();
        assert_same(&client.receive_cut_text(), &sent);
        owner.kill().unwrap();
        owner.wait().unwrap();
    }
    assert_eq!(client.picture().area_of(BLUE).pixels, 640 * 480);
}

/// TigerVNC's server takes no longer text from X than comes in one piece, so that this desktop is a stand-in.
#[test]
fn a_cut_text_of_one_mebibyte_arrives_whole_from_a_desktop_that_sends_it() {
    let sent = letters(7, LENGTHS[3]);
    let (text, length) = (sent.clone(), u32::try_from(sent.len()).unwrap());
    let desktop = Target::new(move |mut stream| {
        stream
            .write_all(&[&[3, 0, 0, 0][..], &length.to_be_bytes(), &text].concat())
            .unwrap();
        drop(read_all(stream));
    });
    let gateway = Gateway::start(&Setup::default().desktop("screen", desktop.address, "vnc"));
    let door = Door::open(&gateway, "screen");
    let mut stream = TcpStream::connect(door.address).unwrap();
    let mut arrived = vec![0; 8 + sent.len()];
    stream.read_exact(&mut arrived).unwrap();
    assert_same(&arrived[8..], &sent);
}

fn start() -> (Xvnc, Gateway) {
    let xvnc = Xvnc::start(BLUE);
    let gateway = Gateway::start(&Setup::default().desktop("screen", xvnc.address, "vnc"));
    (xvnc, gateway)
}

/// How the viewer wants an address: `HOST::PORT`.
fn viewer_address(door: &Door) -> String {
    format!("{}::{}", door.address.ip(), door.address.port())
}

const BLUE: Colour = [0x33, 0x66, 0x99];
const GREEN: Colour = [0x22, 0x88, 0x44];
/// What xclip hands over in one piece.
const ONE_PIECE: usize = 200_000;
/// Around the length of a clipboard message that broke gateways, and far beyond it.
const LENGTHS: [usize; 4] = [1023, 1024, 1025, 1024 * 1024];
