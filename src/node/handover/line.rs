//! The line between two processes while a handover is prepared: one message after another, with descriptors where a
//! message has some. Every wait has a deadline.

use std::io::{self, IoSlice, IoSliceMut, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

use super::message::{Decoder, Garbled, Message};

/// One end of the line.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    decoder: Decoder,
    /// Descriptors that came, in order, and were not taken yet.
    descriptors: Vec<OwnedFd>,
}

/// Why the line is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineFault {
    #[error("the other process ended")]
    Closed,
    #[error("the other process did not answer in time")]
    Late,
    #[error(transparent)]
    Garbled(#[from] Garbled),
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for LineFault {
    fn from(cause: io::Error) -> Self {
        let kind = cause.kind();
        if matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) {
            Self::Late
        } else if matches!(kind, io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) {
            Self::Closed
        } else {
            Self::Io(cause)
        }
    }
}

impl Line {
    /// A line over a stream that blocks.
    pub(super) fn new(stream: UnixStream) -> Self {
        Self {
            stream,
            decoder: Decoder::default(),
            descriptors: Vec::new(),
        }
    }

    /// Says something. Blocks for at most [`WRITE`].
    pub(super) fn send(&mut self, message: &Message) -> Result<(), LineFault> {
        self.send_with(message, &[])
    }

    /// The same, with descriptors.
    pub(super) fn send_with(&mut self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Result<(), LineFault> {
        debug_assert!(descriptors.len() <= TOGETHER);
        self.stream.set_write_timeout(Some(WRITE))?;
        let bytes = message.encode()?;
        let mut sent = 0;
        if !descriptors.is_empty() {
            let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
            let mut control = SendAncillaryBuffer::new(&mut room);
            let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
            debug_assert!(fits, "there is room for as many as go together");
            sent = sendmsg(&self.stream, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL)
                .map_err(io::Error::from)?;
        }
        self.stream.write_all(&bytes[sent..])?;
        Ok(())
    }

    /// The next message that this version knows. Blocks for at most `patience` whenever nothing comes.
    pub(super) fn receive(&mut self, patience: Duration) -> Result<Message, LineFault> {
        self.stream.set_read_timeout(Some(patience))?;
        loop {
            match self.decoder.next_message()? {
                Some(Message::Unknown) => {}
                Some(message) => return Ok(message),
                None => self.fill()?,
            }
        }
    }

    fn fill(&mut self) -> Result<(), LineFault> {
        let mut bytes = [0; 64 * 1024];
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(TOGETHER))];
        let mut control = RecvAncillaryBuffer::new(&mut room);
        let received = recvmsg(
            &self.stream,
            &mut [IoSliceMut::new(&mut bytes)],
            &mut control,
            RecvFlags::CMSG_CLOEXEC,
        );
        let received = received.map_err(io::Error::from)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        if received.bytes == 0 {
            return Err(LineFault::Closed);
        }
        self.decoder.push(&bytes[..received.bytes]);
        Ok(())
    }

    /// The first `count` of the descriptors that came; `None` if there are not so many.
    pub(super) fn take_descriptors(&mut self, count: usize) -> Option<Vec<OwnedFd>> {
        (count <= self.descriptors.len()).then(|| self.descriptors.drain(..count).collect())
    }

    /// The stream.
    pub(super) fn stream(&self) -> &UnixStream {
        &self.stream
    }

    /// Takes it apart, once everything is prepared: the stream, and what came and was not read.
    pub(super) fn into_parts(self) -> (UnixStream, Decoder) {
        (self.stream, self.decoder)
    }
}

/// Descriptors in one message; the system takes 253.
pub(super) const TOGETHER: usize = 64;
/// For the other side to take what is said to it.
const WRITE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
    use std::os::fd::AsFd as _;

    use super::super::message::{SocketFacts, SocketUse};
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    fn pair() -> (Line, Line) {
        let (here, there) = UnixStream::pair().unwrap();
        (Line::new(here), Line::new(there))
    }

    #[test]
    fn a_listening_socket_passes_with_its_backlog() {
        let (mut here, mut there) = pair();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let waiting = TcpStream::connect(address).unwrap();
        let facts = |use_| SocketFacts { address, use_ };
        let sockets = vec![facts(SocketUse::Connections), facts(SocketUse::Datagrams)];
        here.send(&Message::Go {}).unwrap();
        let message = Message::Sockets { sockets };
        here.send_with(&message, &[listener.as_fd(), datagrams.as_fd()])
            .unwrap();
        here.send(&Message::Serving {}).unwrap();
        drop((listener, here));

        assert_eq!(there.receive(PATIENCE).unwrap(), Message::Go {});
        assert_eq!(there.receive(PATIENCE).unwrap(), message);
        assert!(there.take_descriptors(3).is_none());
        let mut descriptors = there.take_descriptors(2).unwrap().into_iter();
        let taken = TcpListener::from(descriptors.next().unwrap());
        let (_, peer) = taken.accept().unwrap();
        assert_eq!(peer, waiting.local_addr().unwrap(), "who waited is served");
        let taken = UdpSocket::from(descriptors.next().unwrap());
        assert_eq!(taken.local_addr().unwrap(), datagrams.local_addr().unwrap());
        assert_eq!(there.receive(PATIENCE).unwrap(), Message::Serving {});
        assert!(matches!(there.receive(PATIENCE), Err(LineFault::Closed)));
    }

    #[test]
    fn as_many_descriptors_as_there_are_addresses_pass_in_order() {
        let (mut here, mut there) = pair();
        let sockets: Vec<_> = (0..150).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        let port = |socket: &UdpSocket| socket.local_addr().unwrap().port();
        for some in sockets.chunks(TOGETHER) {
            let facts = |socket: &UdpSocket| SocketFacts {
                address: SocketAddr::from(([127, 0, 0, 1], port(socket))),
                use_: SocketUse::Quic,
            };
            let message = Message::Sockets {
                sockets: some.iter().map(facts).collect(),
            };
            let descriptors: Vec<_> = some.iter().map(|socket| socket.as_fd()).collect();
            here.send_with(&message, &descriptors).unwrap();
        }
        drop(here);
        let mut seen = Vec::new();
        while let Ok(Message::Sockets { sockets }) = there.receive(PATIENCE) {
            let descriptors = there.take_descriptors(sockets.len()).unwrap();
            for (facts, descriptor) in sockets.iter().zip(descriptors) {
                assert_eq!(port(&UdpSocket::from(descriptor)), facts.address.port());
                seen.push(facts.address.port());
            }
        }
        assert_eq!(seen, sockets.iter().map(port).collect::<Vec<_>>());
    }

    #[test]
    fn silence_is_not_waited_for_for_ever() {
        let (_here, mut there) = pair();
        assert!(matches!(there.receive(Duration::from_millis(10)), Err(LineFault::Late)));
    }
}
