//! Addresses as text, for lines and fields that are written with each request.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bytes::BufMut;

/// Puts an address as it is displayed. IPv4 goes without the machinery of formatting, which costs more than the rest of a
/// line, and in one piece.
pub fn put_ip(out: &mut impl BufMut, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            let mut text = Short::default();
            text.ip(address);
            out.put_slice(text.bytes());
        }
        IpAddr::V6(address) => display(out, address),
    }
}

/// Puts an address with its port as it is displayed.
pub fn put_socket(out: &mut impl BufMut, address: SocketAddr) {
    match address {
        SocketAddr::V4(address) => {
            let mut text = Short::default();
            text.ip(*address.ip());
            text.put(b':');
            text.decimal(address.port());
            out.put_slice(text.bytes());
        }
        SocketAddr::V6(address) => display(out, address),
    }
}

/// Room for an address of IPv4 with its port, and how much of it is taken.
#[derive(Default)]
struct Short {
    text: [u8; 24],
    length: usize,
}

impl Short {
    fn bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }

    fn put(&mut self, byte: u8) {
        self.text[self.length] = byte;
        self.length += 1;
    }

    fn ip(&mut self, address: Ipv4Addr) {
        let [first, rest @ ..] = address.octets();
        self.decimal(first.into());
        for octet in rest {
            self.put(b'.');
            self.decimal(octet.into());
        }
    }

    fn decimal(&mut self, number: u16) {
        let digit = |place: u16| b'0' + (number / place % 10) as u8;
        if number >= 10_000 {
            self.put(digit(10_000));
        }
        if number >= 1000 {
            self.put(digit(1000));
        }
        if number >= 100 {
            self.put(digit(100));
        }
        if number >= 10 {
            self.put(digit(10));
        }
        self.put(digit(1));
    }
}

fn display(out: &mut impl BufMut, address: impl fmt::Display) {
    // Writing to memory does not fail.
    let _written = write!(Text(out), "{address}");
}

struct Text<'a, B>(&'a mut B);

impl<B: BufMut> Write for Text<'_, B> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.put_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn addresses_are_put_as_they_are_displayed(address: IpAddr, port: u16) {
            let socket = SocketAddr::new(address, port);
            let (mut alone, mut with_port) = (Vec::new(), Vec::new());
            put_ip(&mut alone, address);
            put_socket(&mut with_port, socket);
            prop_assert_eq!(String::from_utf8(alone).unwrap(), address.to_string());
            prop_assert_eq!(String::from_utf8(with_port).unwrap(), socket.to_string());
        }
    }
}
