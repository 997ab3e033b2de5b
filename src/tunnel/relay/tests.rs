use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::*;
use crate::authenticate::Authenticated;
use crate::config;
use crate::grant::Store;
use crate::types::{DesktopId, Protocol, Target};

#[tokio::test(start_paused = true)]
async fn the_answer_arrives_after_the_question_has_ended() {
    let session = Session::new();
    let (mut client, mut desktop, ended) = session.relay(64 * 1024, None);
    let peers = async {
        let question = vec![7; 1 << 20];
        let asked = async {
            client.write_all(&question).await.unwrap();
            client.shutdown().await.unwrap();
        };
        let mut heard = Vec::new();
        tokio::join!(asked, async { desktop.read_to_end(&mut heard).await.unwrap() });
        assert_eq!(heard, question);
        tokio::time::sleep(Duration::from_secs(2)).await;
        let mut answer = Vec::new();
        let answered = async {
            desktop.write_all(&heard).await.unwrap();
            desktop.shutdown().await.unwrap();
        };
        tokio::join!(answered, async { client.read_to_end(&mut answer).await.unwrap() });
        assert_eq!(answer, question);
    };
    let ((), reason) = tokio::join!(peers, ended);
    assert_eq!(reason, CloseReason::Completed);
    assert_eq!(
        (session.grant.bytes_in(), session.grant.bytes_out()),
        (1 << 20, 1 << 20)
    );
}

#[tokio::test(start_paused = true)]
async fn the_desktop_may_end_first() {
    let session = Session::new();
    let (mut client, mut desktop, ended) = session.relay(64, None);
    let peers = async {
        desktop.write_all(b"bye").await.unwrap();
        desktop.shutdown().await.unwrap();
        let mut heard = String::new();
        client.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "bye");
        client.write_all(b"so long").await.unwrap();
        client.shutdown().await.unwrap();
        heard.clear();
        desktop.read_to_string(&mut heard).await.unwrap();
        assert_eq!(heard, "so long");
    };
    let ((), reason) = tokio::join!(peers, ended);
    assert_eq!(reason, CloseReason::Completed);
}

#[tokio::test(start_paused = true)]
async fn it_ends_as_its_session_does() {
    let session = Session::new();
    let (_client, _desktop, ended) = session.relay(64, None);
    let revoked = async {
        tokio::time::sleep(Duration::from_secs(30_000)).await;
        session.store.revoke(session.grant.id(), CloseReason::Drained);
    };
    assert_eq!(tokio::join!(ended, revoked).0, CloseReason::Drained);
}

#[tokio::test(start_paused = true)]
async fn it_ends_when_its_route_is_taken_away() {
    let session = Session::new();
    let (_client, _desktop, ended) = session.relay(64, None);
    let taken = async { session.grant.remove_route(session.route.id()) };
    assert_eq!(tokio::join!(ended, taken).0, CloseReason::Killed);
    assert_eq!(session.grant.revocation(), None);
}

#[tokio::test(start_paused = true)]
async fn idle_is_counted_from_the_last_byte() {
    let session = Session::new();
    let started = clock::now();
    let (_client, mut desktop, ended) = session.relay(64, Some(Duration::from_secs(60)));
    let late = async {
        tokio::time::sleep(Duration::from_secs(50)).await;
        desktop.write_all(b"x").await.unwrap();
    };
    assert_eq!(tokio::join!(ended, late).0, CloseReason::Idle);
    assert_eq!(clock::now().duration_since(started).as_secs(), 110);
}

#[tokio::test(start_paused = true)]
async fn only_the_client_keeps_its_session_active() {
    let session = Session::new();
    let (mut client, mut desktop, ended) = session.relay(64, None);
    let peers = async {
        tokio::time::sleep(Duration::from_secs(10)).await;
        client.write_all(b"x").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        desktop.write_all(b"y").await.unwrap();
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop((client, desktop));
    };
    tokio::join!(peers, ended);
    let active = session.grant.last_activity() - session.grant.created();
    assert_eq!(active.as_secs(), 10);
}

#[tokio::test]
async fn a_client_that_takes_nothing_holds_up_its_desktop() {
    let session = Session::new();
    let (_client, mut desktop, ended) = session.relay(1000, None);
    let sends = async {
        let mut sent = 0;
        let limit = Duration::from_millis(50);
        while let Ok(wrote) = tokio::time::timeout(limit, desktop.write(&[0; 1000])).await {
            sent += wrote.unwrap();
        }
        sent
    };
    let sent = tokio::select! {
        sent = sends => sent,
        reason = ended => panic!("ended: {reason}"),
    };
    assert!(sent <= 2 * 1000 + scratch::LENGTH, "{sent} bytes are on their way");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// However the bytes are cut on their way, they arrive whole and in order, and are watched so.
    #[test]
    fn every_byte_arrives_in_order(
        up in pieces(),
        down in pieces(),
        (near, far) in (1..5000_usize, 1..5000_usize),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let session = Session::new();
            let (client, mut inner) = duplex(near);
            let (mut outer, desktop) = duplex(far);
            let mut watched = Vec::new();
            let relay = session.terms(None);
            let ended = relay.run_watched(&mut inner, &mut outer, |bytes| watched.extend_from_slice(bytes));
            let (reason, got_down, got_up) = tokio::join!(ended, exchange(client, up.clone()), exchange(desktop, down.clone()));
            assert_eq!(reason, CloseReason::Completed);
            assert!(got_up == up.concat() && got_down == down.concat() && watched == got_down);
        });
    }
}

/// Sends all pieces and ends, while it reads all that comes.
async fn exchange(stream: DuplexStream, pieces: Vec<Vec<u8>>) -> Vec<u8> {
    let (mut read, mut write) = tokio::io::split(stream);
    let sent = async {
        for piece in pieces {
            write.write_all(&piece).await.unwrap();
            tokio::task::yield_now().await;
        }
        write.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    tokio::join!(sent, async { read.read_to_end(&mut got).await.unwrap() });
    got
}

fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..9000), 0..12)
}

/// A session with one route.
struct Session {
    store: Store,
    grant: Arc<Grant>,
    route: Arc<Route>,
}

impl Session {
    fn new() -> Self {
        let now = clock::now();
        let limits = config::Session {
            lifetime: Duration::from_secs(36_000),
            idle: None,
            heartbeat: Duration::from_secs(1_800),
            login_timeout: Duration::from_secs(300),
            first_use: Duration::from_secs(120),
            max: 100,
            per_user: 10,
            connections: 8,
        };
        let store = Store::new("gw-1".parse().unwrap(), None, limits);
        let ann = Authenticated::for_test("ann", IpAddr::V4(Ipv4Addr::LOCALHOST), now);
        let grant = store.mint(ann, now).unwrap();
        let target = Target {
            host: "vdi-1".to_owned(),
            port: 22443,
        };
        let route = grant
            .add_route(&DesktopId::new("desk"), Protocol::Blast, &target, None)
            .unwrap();
        Self { store, grant, route }
    }

    fn terms(&self, idle: Option<Duration>) -> Relay<'_> {
        Relay {
            grant: &self.grant,
            route: &self.route,
            idle,
        }
    }

    /// The client's end, the desktop's end, and the relay between them.
    fn relay(
        &self,
        room: usize,
        idle: Option<Duration>,
    ) -> (DuplexStream, DuplexStream, impl Future<Output = CloseReason>) {
        let (client, mut inner) = duplex(room);
        let (mut outer, desktop) = duplex(room);
        let terms = self.terms(idle);
        (client, desktop, async move { terms.run(&mut inner, &mut outer).await })
    }
}
