//! The name that a client asks for, looked at before TLS is agreed.

use std::io;

use bytes::{BufMut, BytesMut};
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::fault::CloseReason;
use crate::listen::Prefixed;

/// Reads the client's first message without taking it: the name that it asks for in lower case, if it asks for one.
///
/// # Errors
/// [`CloseReason::TlsFailed`] if it is no such message, [`CloseReason::TooLarge`] if it does not end within 16 KiB,
/// [`CloseReason::ClientClosed`] if the client went away.
///
/// # Cancel safety
/// Waits for the client without a limit of its own. Dropping the future loses what was read.
pub async fn name_asked_for<IO>(io: &mut Prefixed<IO>) -> Result<Option<Box<str>>, CloseReason>
where
    IO: AsyncRead + Unpin,
{
    let mut acceptor = Acceptor::default();
    let mut seen = BytesMut::with_capacity(FIRST_READ);
    let name = loop {
        if seen.len() >= HELLO_MAX {
            return Err(CloseReason::TooLarge);
        }
        let before = seen.len();
        let room = HELLO_MAX - before;
        match io.read_buf(&mut (&mut seen).limit(room.min(FIRST_READ))).await {
            Ok(0) | Err(_) => return Err(CloseReason::ClientClosed),
            Ok(_) => {}
        }
        match feed(&mut acceptor, &seen[before..]) {
            Some(Ok(name)) => break name,
            Some(Err(reason)) => return Err(reason),
            None => {}
        }
    };
    io.put_back(seen.freeze());
    Ok(name)
}

/// Gives the message on; `None` while it has not ended.
fn feed(acceptor: &mut Acceptor, mut bytes: &[u8]) -> Option<Result<Option<Box<str>>, CloseReason>> {
    while !bytes.is_empty() {
        let taken: io::Result<usize> = acceptor.read_tls(&mut bytes);
        if !matches!(taken, Ok(1..)) {
            return Some(Err(CloseReason::TlsFailed));
        }
        match acceptor.accept() {
            Ok(Some(accepted)) => {
                let hello = accepted.client_hello();
                return Some(Ok(hello.server_name().map(|name| name.to_ascii_lowercase().into())));
            }
            Ok(None) => {}
            Err(_) => return Some(Err(CloseReason::TlsFailed)),
        }
    }
    None
}

const FIRST_READ: usize = 2048;
/// More than any client's, with post-quantum key shares; one record.
const HELLO_MAX: usize = 16 * 1024;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection, RootCertStore};
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn the_name_is_seen_and_the_message_is_still_there() {
        let hello = hello("Desk.Example.com");
        let (mut far, near) = tokio::io::duplex(64);
        let message = hello.clone();
        let mut io = Prefixed::new(Bytes::new(), near);
        let (name, ()) = tokio::join!(name_asked_for(&mut io), async {
            far.write_all(&message).await.unwrap();
        });
        assert_eq!(name.unwrap().as_deref(), Some("desk.example.com"));
        let mut again = vec![0; hello.len()];
        io.read_exact(&mut again).await.unwrap();
        assert_eq!(again, hello);
    }

    #[tokio::test]
    async fn what_is_no_hello_is_refused() {
        for (bytes, reason) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], CloseReason::TlsFailed),
            (&b"\x16\x03\x01\x40\x00"[..], CloseReason::ClientClosed),
            (b"", CloseReason::ClientClosed),
        ] {
            let (mut far, near) = tokio::io::duplex(64 * 1024);
            far.write_all(bytes).await.unwrap();
            drop(far);
            let mut io = Prefixed::new(Bytes::new(), near);
            assert_eq!(name_asked_for(&mut io).await.unwrap_err(), reason);
        }
    }

    #[tokio::test]
    async fn a_hello_without_an_end_is_too_large() {
        let (mut far, near) = tokio::io::duplex(64 * 1024);
        let mut endless = b"\x16\x03\x01\x3f\xff\x01\x00\x3f\xf0\x03\x03".to_vec();
        endless.resize(5 + 0x3fff, 0);
        endless.extend_from_slice(b"\x16\x03\x01\x3f\xff");
        far.write_all(&endless).await.unwrap();
        let mut io = Prefixed::new(Bytes::new(), near);
        let reason = name_asked_for(&mut io).await.unwrap_err();
        assert!(
            matches!(reason, CloseReason::TooLarge | CloseReason::TlsFailed),
            "{reason:?}"
        );
    }

    fn hello(name: &'static str) -> Vec<u8> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(RootCertStore::empty())
            .with_no_client_auth();
        let name = ServerName::try_from(name).unwrap();
        let mut client = ClientConnection::new(Arc::new(config), name).unwrap();
        let mut bytes = Vec::new();
        client.write_tls(&mut bytes).unwrap();
        bytes
    }
}
