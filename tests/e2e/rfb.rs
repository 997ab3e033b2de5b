//! A small VNC client (RFC 6143): raw pixels and cut texts.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use super::screen::Picture;
use crate::support::PATIENCE;

/// A client that shares the desktop with others.
pub(super) struct Rfb {
    stream: TcpStream,
    /// The size of the desktop.
    pub(super) size: (usize, usize),
}

impl Rfb {
    /// Connects to a server that asks for no password.
    pub(super) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        let mut rfb = Self { stream, size: (0, 0) };
        assert_eq!(rfb.take(12), b"RFB 003.008\n");
        rfb.put(b"RFB 003.008\n");
        let kinds = rfb.take(1)[0];
        assert!(rfb.take(kinds.into()).contains(&NO_SECURITY));
        rfb.put(&[NO_SECURITY]);
        assert_eq!(rfb.word(), 0, "it is let in");
        let shared = [1];
        rfb.put(&shared);
        let (width, height) = (rfb.half(), rfb.half());
        rfb.size = (width, height);
        rfb.take(16);
        let name = rfb.word();
        rfb.take(name);
        // 32 bits a pixel, depth 24, least significant octet first, true colour, each of up to 255, red highest.
        rfb.put(&[0, 0, 0, 0, 32, 24, 0, 1, 0, 255, 0, 255, 0, 255, 16, 8, 0, 0, 0, 0]);
        let raw_only = [2, 0, 0, 1, 0, 0, 0, 0];
        rfb.put(&raw_only);
        rfb
    }

    /// The whole picture.
    pub(super) fn picture(&mut self) -> Picture {
        let (width, height) = self.size;
        let mut request = vec![3, 0, 0, 0, 0, 0];
        request.extend(
            [width, height]
                .map(|side| u16::try_from(side).unwrap().to_be_bytes())
                .concat(),
        );
        self.put(&request);
        let mut pixels = vec![[0; 3]; width * height];
        let mut missing = pixels.len();
        while missing > 0 {
            assert_eq!(self.next_but_text(), UPDATE);
            self.take(1);
            for _ in 0..self.half() {
                let (x, y, columns, rows) = (self.half(), self.half(), self.half(), self.half());
                assert_eq!(self.word(), 0, "raw");
                for row in y..y + rows {
                    let octets = self.take(4 * columns);
                    let colours = octets.chunks_exact(4).map(|pixel| [pixel[2], pixel[1], pixel[0]]);
                    pixels[row * width + x..][..columns].copy_from_slice(&colours.collect::<Vec<_>>());
                }
                missing = missing.saturating_sub(columns * rows);
            }
        }
        Picture { width, pixels }
    }

    /// Puts a text on the server's clipboard.
    pub(super) fn send_cut_text(&mut self, text: &[u8]) {
        let mut message = vec![6, 0, 0, 0];
        message.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        message.extend(text);
        self.put(&message);
    }

    /// Waits for a text that was put on the server's clipboard.
    pub(super) fn receive_cut_text(&mut self) -> Vec<u8> {
        assert_eq!(self.take(1)[0], CUT_TEXT);
        self.rest_of_cut_text()
    }

    fn rest_of_cut_text(&mut self) -> Vec<u8> {
        self.take(3);
        let length = self.word();
        self.take(length)
    }

    /// The type of the next message that is no cut text.
    fn next_but_text(&mut self) -> u8 {
        loop {
            match self.take(1)[0] {
                CUT_TEXT => drop(self.rest_of_cut_text()),
                kind => return kind,
            }
        }
    }

    fn put(&mut self, octets: &[u8]) {
        self.stream.write_all(octets).unwrap();
    }

    fn take(&mut self, length: usize) -> Vec<u8> {
        let mut octets = vec![0; length];
        self.stream.read_exact(&mut octets).unwrap();
        octets
    }

    fn word(&mut self) -> usize {
        self.half() << 16 | self.half()
    }

    fn half(&mut self) -> usize {
        u16::from_be_bytes(self.take(2).try_into().unwrap()).into()
    }
}

const NO_SECURITY: u8 = 1;
const UPDATE: u8 = 0;
const CUT_TEXT: u8 = 3;
