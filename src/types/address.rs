//! Addresses as text, for lines and fields that are written with each request.

use std::fmt::{self, Write};
use std::net::{IpAddr, SocketAddr};

use bytes::BufMut;

/// Puts an address as it is displayed. IPv4 goes without the machinery of formatting, which costs more than the rest of a
/// line.
pub fn put_ip(out: &mut impl BufMut, address: IpAddr) {
    match address {
        IpAddr::V4(address) => {
            for (place, octet) in address.octets().into_iter().enumerate() {
                if place > 0 {
                    out.put_u8(b'.');
                }
                put_decimal(out, octet.into());
            }
        }
        IpAddr::V6(address) => display(out, address),
    }
}

/// Puts an address with its port as it is displayed.
pub fn put_socket(out: &mut impl BufMut, address: SocketAddr) {
    match address {
        SocketAddr::V4(address) => {
            put_ip(out, (*address.ip()).into());
            out.put_u8(b':');
            put_decimal(out, address.port());
        }
        SocketAddr::V6(address) => display(out, address),
    }
}

fn put_decimal(out: &mut impl BufMut, mut number: u16) {
    let mut digits = [0; 5];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.put_slice(&digits[at..]);
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
