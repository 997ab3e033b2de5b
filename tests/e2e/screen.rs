//! An X server without a screen, whose picture the tests can look at.

use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::peer::{Peer, line, run, tool};

/// A colour, as red, green and blue.
pub(super) type Colour = [u8; 3];

/// A running X server. Clients are shown on it with `DISPLAY`.
pub(super) struct Screen {
    _peer: Peer,
    folder: TempDir,
    /// Its name for clients, such as `:4`.
    pub(super) display: String,
}

impl Screen {
    /// Starts Xvfb with a picture of that size.
    pub(super) fn start(width: u32, height: u32) -> Self {
        let folder = TempDir::new().unwrap();
        let mut command = tool("Xvfb");
        command.args(["-displayfd", "1", "-nolisten", "tcp", "-screen", "0"]);
        command
            .arg(format!("{width}x{height}x24"))
            .arg("-fbdir")
            .arg(folder.path());
        let (peer, mut stdout) = Peer::start_speaking(&mut command, folder.path());
        let display = format!(":{}", line(&mut stdout));
        Self {
            _peer: peer,
            folder,
            display,
        }
    }

    /// The part of the picture that is of a colour.
    pub(super) fn area_of(&self, colour: Colour) -> Area {
        Picture::read(&self.folder.path().join("Xvfb_screen0")).area_of(colour)
    }
}

/// Fills the background of a display.
pub(super) fn fill(display: &str, [red, green, blue]: Colour) {
    let colour = format!("#{red:02x}{green:02x}{blue:02x}");
    run(tool("xsetroot").env("DISPLAY", display).args(["-solid", &colour]));
}

/// A program that is shown on a display, with a home of its own.
pub(super) fn shown_on(display: &str, program: &str, home: &Path) -> Command {
    let mut command = tool(program);
    command.env("DISPLAY", display).env("HOME", home);
    for variable in ["XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XAUTHORITY"] {
        command.env_remove(variable);
    }
    command
}

/// Where a colour is, and how many pixels have it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Area {
    pub(super) width: usize,
    pub(super) height: usize,
    pub(super) pixels: usize,
}

impl Area {
    /// Whether it fills a rectangle of that size, but for a mouse pointer.
    pub(super) fn fills(&self, width: usize, height: usize) -> bool {
        (self.width, self.height) == (width, height) && self.pixels + POINTER >= width * height
    }
}

/// Rows of pixels.
pub(super) struct Picture {
    pub(super) width: usize,
    pub(super) pixels: Vec<Colour>,
}

impl Picture {
    /// Reads what Xvfb shows: a file in the format of xwd, with 32 bits a pixel, blue first.
    fn read(file: &Path) -> Self {
        let octets = fs::read(file).unwrap();
        let word = |place: usize| u32::from_be_bytes(octets[4 * place..][..4].try_into().unwrap()) as usize;
        let (header, width, height, row, colours) = (word(0), word(4), word(5), word(12), word(19));
        assert_eq!(
            (word(11), word(7)),
            (32, 0),
            "bits a pixel, least significant octet first"
        );
        let rows = octets[header + 12 * colours..].chunks_exact(row).take(height);
        let pixels = rows
            .flat_map(|row| row[..4 * width].chunks_exact(4))
            .map(|pixel| [pixel[2], pixel[1], pixel[0]]);
        Self {
            width,
            pixels: pixels.collect(),
        }
    }

    pub(super) fn area_of(&self, colour: Colour) -> Area {
        let of_colour = self.pixels.iter().enumerate().filter(|(_, pixel)| **pixel == colour);
        let places: Vec<_> = of_colour
            .map(|(place, _)| (place % self.width, place / self.width))
            .collect();
        let span = |along: fn(&(usize, usize)) -> usize| {
            let (first, last) = (places.iter().map(along).min(), places.iter().map(along).max());
            first.zip(last).map_or(0, |(first, last)| last - first + 1)
        };
        Area {
            width: span(|place| place.0),
            height: span(|place| place.1),
            pixels: places.len(),
        }
    }
}

/// Pixels that a mouse pointer may cover.
const POINTER: usize = 500;
