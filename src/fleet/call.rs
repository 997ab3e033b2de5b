//! What a stream of QUIC asks for, as one node tells another, and what it is answered.
//!
//! A length of two octets (big-endian), then so much text: `WAY NAME TOKEN`; `-` stands for no name. The answer is one
//! octet. After it, bytes pass as they are, and datagrams as capsules (RFC 9297).

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::types::Secret;

/// What a stream asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What passes on it.
    pub way: Way,
    /// The route's name; `None` if the request named none that a route can have.
    pub name: Option<String>,
    /// The token under which it is to be admitted.
    pub token: Secret,
}

/// What passes on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Bytes.
    Bytes,
    /// Datagrams.
    Datagrams,
    /// The word on the session's end.
    Session,
}

/// What the owner of the grant answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// What was asked for follows.
    Admitted,
    /// Not admitted.
    Refused,
    /// The desktop cannot be reached.
    Unreachable,
}

impl Way {
    const ALL: [Self; 3] = [Self::Bytes, Self::Datagrams, Self::Session];

    fn code(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Datagrams => "datagrams",
            Self::Session => "session",
        }
    }
}

impl Reply {
    const ALL: [Self; 3] = [Self::Admitted, Self::Refused, Self::Unreachable];

    /// Reads the answer. Not cancel-safe: dropped, it loses the octet.
    ///
    /// # Errors
    /// The connection is lost, or the octet is no answer.
    pub async fn read<IO: AsyncRead + Unpin>(io: &mut IO) -> std::io::Result<Self> {
        let octet = io.read_u8().await?;
        let known = Self::ALL.into_iter().find(|reply| *reply as u8 == octet);
        known.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    }

    /// Sends the answer.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn write<IO: AsyncWrite + Unpin>(self, io: &mut IO) -> std::io::Result<()> {
        io.write_u8(self as u8).await?;
        io.flush().await
    }
}

impl Call {
    /// Reads a call. Not cancel-safe: dropped, it loses what was read.
    ///
    /// # Errors
    /// The connection is lost, or the text is no call.
    pub async fn read<IO: AsyncRead + Unpin>(io: &mut IO) -> std::io::Result<Self> {
        let length = usize::from(io.read_u16().await?);
        if length > MAX {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        let mut text = vec![0; length];
        io.read_exact(&mut text).await?;
        Self::parse(&text).ok_or_else(|| std::io::ErrorKind::InvalidData.into())
    }

    /// Sends the call.
    ///
    /// # Errors
    /// The connection is lost, or a name or token is longer than any that is good for something.
    pub async fn write<IO: AsyncWrite + Unpin>(&self, io: &mut IO) -> std::io::Result<()> {
        let text = self.text();
        let length = u16::try_from(text.len())
            .ok()
            .filter(|length| usize::from(*length) <= MAX);
        io.write_u16(length.ok_or(std::io::ErrorKind::InvalidInput)?).await?;
        io.write_all(text.as_bytes()).await?;
        io.flush().await
    }

    fn text(&self) -> String {
        let name = self.name.as_deref().unwrap_or(NO_NAME);
        format!("{} {name} {}", self.way.code(), self.token.expose())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let code = words.next()?;
        let way = Way::ALL.into_iter().find(|way| way.code() == code)?;
        let name = words.next()?;
        let token = Secret::new(words.next()?);
        let name = (name != NO_NAME).then(|| name.to_owned());
        words.next().is_none().then_some(Self { way, name, token })
    }
}

/// No route has this name.
const NO_NAME: &str = "-";
/// The longest text, in octets.
const MAX: usize = 512;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_call_survives_its_text(way in 0_usize..3, name in proptest::option::of("[a-z]{1,8}-[0-9]{1,9}"), token in "[a-zA-Z0-9._-]{0,120}") {
            let call = Call { way: Way::ALL[way], name, token: Secret::new(token) };
            let text = call.text();
            prop_assert!(text.len() <= MAX);
            prop_assert_eq!(Call::parse(text.as_bytes()), Some(call));
        }

        #[test]
        fn no_text_panics_the_reader(text in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Call::parse(&text);
        }
    }

    #[tokio::test]
    async fn an_octet_that_is_no_answer_is_an_error() {
        for reply in Reply::ALL {
            let mut octets = Vec::new();
            reply.write(&mut octets).await.unwrap();
            assert_eq!(Reply::read(&mut octets.as_slice()).await.unwrap(), reply);
        }
        assert!(Reply::read(&mut [9_u8].as_slice()).await.is_err());
    }
}
