//! Where a server's frames begin and end (RFC 6455 section 5.2): enough to know when a frame of ours may follow, so that a
//! WebSocket that the node ends is closed in words.

use std::io;

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

/// The bounds of a stream of frames. Pure; a stream that is not one of frames yields wrong bounds and nothing worse.
#[derive(Debug, Default)]
pub struct Frames {
    /// Bytes of the payload that are still to come.
    left: u64,
    /// A header that has begun.
    header: [u8; HEADER_MAX],
    length: usize,
    closed: bool,
}

impl Frames {
    /// Takes note of bytes that pass.
    pub fn pass(&mut self, mut bytes: &[u8]) {
        loop {
            let payload = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
            self.left -= payload as u64;
            bytes = &bytes[payload..];
            let length = header_length(bytes);
            if self.length == 0 && length <= bytes.len() {
                // Nearly always a header is there as a whole.
                let (header, rest) = bytes.split_at(length);
                self.begin(header);
                bytes = rest;
            } else if let [first, rest @ ..] = bytes {
                self.header[self.length] = *first;
                self.length += 1;
                bytes = rest;
                let header = self.header;
                if self.length == header_length(&header[..self.length]) {
                    self.begin(&header[..self.length]);
                    self.length = 0;
                }
            } else {
                return;
            }
        }
    }

    /// A frame begins.
    fn begin(&mut self, header: &[u8]) {
        self.closed |= header[0] & OPCODE == CLOSE;
        self.left = payload_length(header);
    }

    /// Whether a closing frame can follow what has passed: between two frames, and none before it.
    pub fn can_close(&self) -> bool {
        self.left == 0 && self.length == 0 && !self.closed
    }
}

/// Tells the client of a WebSocket that its server goes away (RFC 6455 section 7.4.1), and in which `words`.
///
/// # Errors
/// The client is gone. One that takes nothing is waited for.
pub async fn goodbye<C: AsyncWrite + Unpin>(client: &mut C, words: &str) -> io::Result<()> {
    client.write_all(&close(GOING_AWAY, words)).await?;
    client.flush().await
}

/// A closing frame of a server. The words are cut to what it can hold.
fn close(code: u16, words: &str) -> Vec<u8> {
    let room = words.len().min(CONTROL_MAX - 2);
    let words = (0..=room).rev().find_map(|end| words.get(..end)).unwrap_or_default();
    let mut frame = vec![FIN | CLOSE, 2 + words.len() as u8];
    frame.extend_from_slice(&code.to_be_bytes());
    frame.extend_from_slice(words.as_bytes());
    frame
}

/// How long the header is that begins so.
fn header_length(begun: &[u8]) -> usize {
    let Some(second) = begun.get(1) else {
        return HEADER_MAX;
    };
    let extended = match second & LENGTH {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    let mask = if second & MASKED == 0 { 0 } else { 4 };
    2 + extended + mask
}

fn payload_length(header: &[u8]) -> u64 {
    let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
    match header[1] & LENGTH {
        126 => number(&header[2..4]),
        127 => number(&header[2..10]),
        short => u64::from(short),
    }
}

/// The server goes away (RFC 6455 section 7.4.1).
const GOING_AWAY: u16 = 1001;

const HEADER_MAX: usize = 14;
const CONTROL_MAX: usize = 125;
const FIN: u8 = 0x80;
const OPCODE: u8 = 0x0F;
const CLOSE: u8 = 0x08;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7F;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn nothing_follows_a_closing_frame() {
        let mut frames = Frames::default();
        assert!(frames.can_close());
        frames.pass(&close(GOING_AWAY, "bye"));
        assert!(!frames.can_close());
    }

    #[test]
    fn a_closing_frame_is_small_whatever_is_said() {
        let frame = close(GOING_AWAY, &"ä".repeat(100));
        assert_eq!((frame.len(), frame[1] as usize), (2 + 2 + 122, 2 + 122));
        assert!(std::str::from_utf8(&frame[4..]).is_ok());
    }

    proptest! {
        /// However frames are cut on their way: only between two of them can one of ours follow.
        #[test]
        fn bounds_are_found_whatever_the_cuts(
            lengths in proptest::collection::vec(prop_oneof![0..200_usize, 100..70_000_usize], 1..6),
            masked: bool,
            cuts in proptest::collection::vec(1..5000_usize, 1..50),
        ) {
            let mut stream = Vec::new();
            let mut bounds = vec![0];
            for length in lengths {
                stream.extend(frame(length, masked));
                bounds.push(stream.len());
            }
            let mut frames = Frames::default();
            let mut passed = 0;
            for cut in cuts.into_iter().cycle() {
                let end = (passed + cut).min(stream.len());
                frames.pass(&stream[passed..end]);
                passed = end;
                prop_assert_eq!(frames.can_close(), bounds.contains(&passed));
                if passed == stream.len() {
                    break;
                }
            }
        }

        #[test]
        fn any_bytes_are_passed(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            Frames::default().pass(&bytes);
        }
    }

    fn frame(length: usize, masked: bool) -> Vec<u8> {
        let mask = if masked { MASKED } else { 0 };
        let mut frame = vec![FIN | 2];
        match length {
            0..=125 => frame.push(mask | length as u8),
            126..=65_535 => {
                frame.push(mask | 126);
                frame.extend_from_slice(&(length as u16).to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend_from_slice(&(length as u64).to_be_bytes());
            }
        }
        if masked {
            frame.extend_from_slice(&[1, 2, 3, 4]);
        }
        frame.extend(std::iter::repeat_n(CLOSE, length));
        frame
    }
}
