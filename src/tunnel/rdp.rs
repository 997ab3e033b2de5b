//! RDP of a client that knows no gateway: its token comes as a preconnection blob (MS-RDPEPS), before anything else.
//!
//! [`read_token`] reads the blob and not one byte more; [`open`] takes the `Granted` that the token was worth, dials the
//! route's desktop and relays. The client's RDP passes untouched, its TLS included.

use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};

use super::relay::Relay;
use crate::fault::{CloseReason, Refusal};
use crate::grant::Granted;
use crate::types::Secret;
use crate::upstream::{self, DialFault};

pub mod blob;

use blob::Progress;

/// Reads the token of a preconnection blob from the start of a connection. What follows the blob stays in the stream.
///
/// # Errors
/// [`Refusal::NoToken`] if RDP begins without a blob or the blob is empty, [`Refusal::Malformed`] for anything else that is
/// no blob, [`CloseReason::ClientClosed`] if the client went away first.
///
/// # Cancel safety
/// Waits for the client without a limit of its own: the caller holds a deadline. Bytes that were read are lost then.
pub async fn read_token<IO: AsyncRead + Unpin>(io: &mut IO) -> Result<Secret, CloseReason> {
    let mut buffer = [0; blob::MAX];
    let mut length = 0;
    loop {
        match blob::decode(&buffer[..length]) {
            Ok(Progress::Complete { text, .. }) if text.expose().is_empty() => return Err(Refusal::NoToken.into()),
            Ok(Progress::Complete { text, .. }) => return Ok(text),
            Ok(Progress::Incomplete { at_least }) => {
                let room = buffer.get_mut(length..at_least).ok_or(CloseReason::Internal)?;
                match io.read(room).await {
                    Ok(0) | Err(_) => return Err(CloseReason::ClientClosed),
                    Ok(read) => length += read,
                }
            }
            Err(blob::Fault::NoBlob) => return Err(Refusal::NoToken.into()),
            Err(blob::Fault::Malformed | blob::Fault::TooLong) => return Err(Refusal::Malformed.into()),
        }
    }
}

/// Dials the desktop of an admitted client and relays between them until one of them, the route or the session ends.
///
/// # Errors
/// Nobody was reached; nothing was sent to the client.
///
/// # Cancel safety
/// Dropping the future closes the desktop's connection.
pub async fn open<IO>(granted: &Granted, client: &mut IO) -> Result<CloseReason, Unopened>
where
    IO: AsyncRead + AsyncWrite + Unpin,
{
    // Tokens of this secondary are issued for routes only.
    let route = granted.route().ok_or(Unopened::NoRoute)?;
    let grant = granted.grant();
    let mut desktop = tokio::select! {
        dialled = upstream::dial(route.target(), DIAL_LIMIT) => dialled?,
        () = route.ended() => return Ok(grant.revocation().unwrap_or(CloseReason::Killed)),
    };
    let relay = Relay {
        grant,
        route,
        idle: None,
    };
    Ok(relay.run(client, &mut desktop).await)
}

/// Why an admitted client reached nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unopened {
    /// The token opens no route.
    #[error("the token leads nowhere")]
    NoRoute,
    /// The desktop was not reached.
    #[error(transparent)]
    Dial(#[from] DialFault),
}

impl Unopened {
    /// The reason of the connection's end.
    pub fn close_reason(self) -> CloseReason {
        CloseReason::Refused(match self {
            Self::NoRoute => Refusal::NotAnnounced,
            Self::Dial(_) => Refusal::TargetUnreachable,
        })
    }
}

/// As long as a tunnel's channel waits for its desktop.
const DIAL_LIMIT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;

    use super::*;

    async fn read(pieces: &[&[u8]]) -> (Result<Secret, CloseReason>, Vec<u8>) {
        let (mut far, mut near) = tokio::io::duplex(4096);
        let reading = async {
            let token = read_token(&mut near).await;
            let mut rest = Vec::new();
            near.read_to_end(&mut rest).await.unwrap();
            (token, rest)
        };
        let writing = async {
            for piece in pieces {
                far.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
            drop(far);
        };
        tokio::join!(reading, writing).0
    }

    #[tokio::test]
    async fn what_follows_the_blob_stays_in_the_stream_however_it_is_cut() {
        let request = b"\x03\0\0\x13\x0e\xe0\0\0\0\0\0\x01\0\x08\0\x03\0\0\0";
        let whole = [blob::encode("gw-1.abc.def").as_slice(), request].concat();
        for cut in 0..whole.len() {
            let (token, rest) = read(&[&whole[..cut], &whole[cut..]]).await;
            assert_eq!(token.unwrap().expose(), "gw-1.abc.def");
            assert_eq!(rest, request, "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn a_client_without_a_blob_has_no_token_and_any_other_is_malformed() {
        let refused = |refusal: Refusal| Err(CloseReason::Refused(refusal));
        assert_eq!(read(&[b"\x03\0\0\x13\x0e"]).await.0, refused(Refusal::NoToken));
        assert_eq!(read(&[&blob::encode("")]).await.0, refused(Refusal::NoToken));
        assert_eq!(read(&[b"GET / HTTP/1.1\r\n"]).await.0, refused(Refusal::Malformed));
        assert_eq!(read(&[&[0x16, 3, 1, 2, 0, 1]]).await.0, refused(Refusal::Malformed));
        assert_eq!(read(&[]).await.0, Err(CloseReason::ClientClosed));
        assert_eq!(read(&[&blob::encode("x")[..9]]).await.0, Err(CloseReason::ClientClosed));
    }
}
