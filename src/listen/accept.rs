//! The accept loop.

use std::future::poll_fn;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::io::Errno;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::bind::prepare;
use super::episode::Episode;
use super::{Caps, Facts, Incoming};
use crate::clock;
use crate::types::canonical;

/// Accepts connections until `stop` is cancelled, then closes the listener.
///
/// `handler` is called for each connection that has a place in `caps`; it must not wait, so it spawns the connection's
/// task. A connection over the total limit is closed at once. When the system has no descriptors or memory left,
/// accepting pauses for 100 ms, doubling to 1 s while that lasts; the connections wait in the backlog.
pub async fn accept_loop(
    listener: TcpListener,
    name: Arc<str>,
    caps: Arc<Caps>,
    handler: impl Fn(Incoming),
    stop: CancellationToken,
) {
    if let Err(cause) = prepare(&listener) {
        tracing::warn!(listener = &*name, %cause, "socket options refused: small messages may be delayed");
    }
    let bound = listener
        .local_addr()
        .ok()
        .filter(|address| !address.ip().is_unspecified());
    let gate = Gate {
        name,
        caps,
        bound,
        handler,
    };
    gate.run(|cx| listener.poll_accept(cx), stop).await;
}

/// What decides over each accepted socket.
struct Gate<H> {
    name: Arc<str>,
    caps: Arc<Caps>,
    /// The listener's address, if it is the address of all its connections.
    bound: Option<SocketAddr>,
    handler: H,
}

impl<H: Fn(Incoming)> Gate<H> {
    async fn run(
        self,
        accept: impl Fn(&mut Context<'_>) -> Poll<io::Result<(TcpStream, SocketAddr)>>,
        stop: CancellationToken,
    ) {
        let mut pause = SHORTEST_PAUSE;
        let mut starved = Episode::default();
        let mut full = Episode::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = poll_fn(&accept) => accepted,
            };
            match accepted {
                Ok((io, peer)) => {
                    pause = SHORTEST_PAUSE;
                    self.judge(io, peer, &mut full);
                }
                Err(cause) if is_of_one_connection(&cause) => {}
                Err(cause) => {
                    self.caps.accept_failed();
                    if starved.begins(clock::now()) {
                        tracing::warn!(
                            listener = &*self.name,
                            %cause,
                            "cannot accept connections, pausing; raise LimitNOFILE if descriptors ran out"
                        );
                    }
                    tokio::select! {
                        () = stop.cancelled() => return,
                        () = tokio::time::sleep(pause) => {}
                    }
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }

    fn judge(&self, io: TcpStream, peer: SocketAddr, full: &mut Episode) {
        let since = clock::now();
        let Some(permit) = self.caps.admit() else {
            if full.begins(since) {
                tracing::warn!(
                    listener = &*self.name,
                    open = self.caps.counts().open,
                    "node is full, closing further connections; see limits.connections"
                );
            }
            return;
        };
        let peer = canonical(peer);
        let local = self.bound.or_else(|| io.local_addr().ok()).unwrap_or(UNKNOWN);
        let facts = Facts {
            listener: Arc::clone(&self.name),
            local: canonical(local),
            peer,
            client: peer,
            since,
            relayed_by: None,
        };
        (self.handler)(Incoming { io, facts, permit });
    }
}

/// Whether an error of `accept` is the fault of the one connection that was to be accepted (accept(2), "Error handling").
fn is_of_one_connection(cause: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(cause),
        Some(
            Errno::CONNABORTED
                | Errno::CONNRESET
                | Errno::INTR
                | Errno::AGAIN
                | Errno::PROTO
                | Errno::NOPROTOOPT
                | Errno::OPNOTSUPP
                | Errno::NETDOWN
                | Errno::NETUNREACH
                | Errno::HOSTDOWN
                | Errno::HOSTUNREACH
                | Errno::NONET
                | Errno::PERM
                | Errno::TIMEDOUT
        )
    )
}

const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The address of a socket that was reset before it could be asked.
const UNKNOWN: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use parking_lot::Mutex;
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::listen::bind;
    use crate::listen::tests::limits;

    #[tokio::test(start_paused = true)]
    async fn without_descriptors_it_pauses_and_says_so_once() {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        let caps = Caps::new(&limits(9, 9));
        let calls = Cell::new(0);
        let stop = CancellationToken::new();
        let exhausted = |_: &mut Context<'_>| {
            calls.set(calls.get() + 1);
            Poll::Ready(Err(Errno::MFILE.into()))
        };
        let running = gate(&caps, |_| {}).run(exhausted, stop.clone());
        let hour = tokio::time::timeout(Duration::from_secs(3600), running).await;
        assert!(hour.is_err(), "it goes on trying");
        assert!(
            (3600..3610).contains(&calls.get()),
            "{} attempts in an hour",
            calls.get()
        );
        assert_eq!(caps.counts().accept_faults, calls.get());
        let said = lines.0.lock().clone();
        assert_eq!(String::from_utf8(said).unwrap().lines().count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn it_accepts_again_within_a_second_of_relief() {
        let caps = Caps::new(&limits(9, 9));
        let stop = CancellationToken::new();
        let (listener, _client) = with_client().await;
        let start = clock::now();
        let relieved = |cx: &mut Context<'_>| match clock::now() - start {
            early if early < Duration::from_secs(20) => Poll::Ready(Err(Errno::NFILE.into())),
            _ => listener.poll_accept(cx),
        };
        let served = Cell::new(None);
        let handler = |_| {
            served.set(Some(clock::now() - start));
            stop.cancel();
        };
        gate(&caps, handler).run(relieved, stop.clone()).await;
        let after = served.get().unwrap();
        assert!(
            after >= Duration::from_secs(20) && after <= Duration::from_secs(21),
            "{after:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_was_aborted_in_the_backlog_costs_no_pause() {
        let caps = Caps::new(&limits(9, 9));
        let stop = CancellationToken::new();
        let (listener, _client) = with_client().await;
        let aborted = Cell::new(3);
        let start = clock::now();
        let accept = |cx: &mut Context<'_>| match aborted.get() {
            0 => listener.poll_accept(cx),
            left => {
                aborted.set(left - 1);
                Poll::Ready(Err(Errno::CONNABORTED.into()))
            }
        };
        gate(&caps, |_| stop.cancel()).run(accept, stop.clone()).await;
        assert_eq!(clock::now(), start);
        assert_eq!(caps.counts().accept_faults, 0);
    }

    #[tokio::test]
    async fn over_the_total_limit_a_connection_is_closed_at_once_and_counted() {
        let caps = Caps::new(&limits(1, 9));
        let listener = TcpListener::from_std(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let held = Mutex::new(Vec::new());
        let serving = accept_loop(
            listener,
            "test".into(),
            Arc::clone(&caps),
            |incoming| held.lock().push(incoming),
            stop.clone(),
        );
        let clients = async {
            let _first = TcpStream::connect(address).await.unwrap();
            let mut second = TcpStream::connect(address).await.unwrap();
            assert_eq!(second.read(&mut [0]).await.unwrap(), 0, "closed");
            assert_eq!((caps.counts().open, caps.counts().refused_total), (1, 1));
            held.lock().clear();
            let _third = TcpStream::connect(address).await.unwrap();
            while held.lock().is_empty() {
                tokio::task::yield_now().await;
            }
            stop.cancel();
        };
        tokio::join!(serving, clients);
        assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
    }

    fn gate<H: Fn(Incoming)>(caps: &Arc<Caps>, handler: H) -> Gate<H> {
        Gate {
            name: "test".into(),
            caps: Arc::clone(caps),
            bound: None,
            handler,
        }
    }

    async fn with_client() -> (TcpListener, TcpStream) {
        let listener = TcpListener::from_std(bind("127.0.0.1:0".parse().unwrap()).unwrap()).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (listener, client)
    }

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
