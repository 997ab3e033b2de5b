//! Tunnels over in-memory connections to desktops on loopback sockets.

mod rig;
mod wire;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use self::rig::{LOST_CONTACT, Node, RECONNECT_WINDOW, Rig, pattern, read};
use super::*;
use crate::fault::Refusal;
use crate::tunnel::https::message::Message;
use crate::tunnel::https::registry::ListenFault;

#[tokio::test]
async fn octets_pass_both_ways_through_a_channel() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    rig.client.send(1, b"question");
    rig.pump_until(async { assert_eq!(read(&mut socket, 8).await, b"question") })
        .await;
    socket.write_all(b"answer").await.unwrap();
    rig.until(|client| client.channels[&1].received == b"answer").await;
    assert_eq!((rig.grant.bytes_in(), rig.grant.bytes_out()), (8, 6));
    rig.client.lower(1);
    rig.pump_until(async { assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0) })
        .await;
    drop(socket);
    rig.until(|client| client.channels[&1].server_lowered).await;
    rig.end_cleanly().await;
}

#[tokio::test]
async fn what_a_desktop_sent_before_it_closed_arrives_before_the_end() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let sent = pattern(300_000);
    let mut socket = desktop.accept().await;
    let expected = sent.clone();
    rig.tasks.spawn(async move {
        socket.write_all(&sent).await.unwrap();
    });
    rig.until(|client| client.channels[&1].server_lowered).await;
    assert!(rig.client.channels[&1].received == expected);
}

#[tokio::test]
async fn a_mebibyte_passes_each_way_at_the_same_time() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let socket = desktop.accept().await;
    let (mut from_client, mut to_client) = socket.into_split();
    let (up, down) = (pattern(1 << 20), pattern((1 << 20) + 1));
    let answer = down.clone();
    rig.tasks
        .spawn(async move { to_client.write_all(&answer).await.unwrap() });
    for piece in up.chunks(10_240) {
        rig.client.send(1, piece);
    }
    let received = rig.tasks.spawn(async move { read(&mut from_client, 1 << 20).await });
    rig.until(|client| client.channels[&1].received.len() > 1 << 20).await;
    let received = rig.pump_until(received).await.unwrap();
    assert!(received == up);
    assert!(rig.client.channels[&1].received == down);
}

#[tokio::test]
async fn clipboard_texts_of_awkward_sizes_arrive_whole_and_the_channel_lives() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    for length in [1_023, 1_024, 1_025, 1 << 20] {
        let cut_text: Vec<u8> = [&[3, 0, 0, 0][..], &(length as u32).to_be_bytes(), &pattern(length)].concat();
        for piece in cut_text.chunks(10_240) {
            rig.client.send(1, piece);
        }
        rig.pump_until(async { assert!(read(&mut socket, cut_text.len()).await == cut_text) })
            .await;
        let before = rig.client.channels[&1].received.len();
        let (receiver, mut sender) = socket.into_split();
        let text = cut_text.clone();
        let sending = rig.tasks.spawn(async move {
            sender.write_all(&text).await.unwrap();
            sender
        });
        rig.until(|client| client.channels[&1].received.len() == before + cut_text.len())
            .await;
        assert!(rig.client.channels[&1].received[before..] == cut_text);
        socket = receiver.reunite(sending.await.unwrap()).unwrap();
    }
}

#[tokio::test]
async fn an_answer_that_comes_after_the_client_lowered_the_channel_arrives_whole() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    let question = pattern(1 << 20);
    for piece in question.chunks(10_240) {
        rig.client.send(1, piece);
    }
    rig.client.lower(1);
    let answer = pattern((1 << 20) - 7);
    let (expected, sent) = (question, answer.clone());
    rig.tasks.spawn(async move {
        let mut received = Vec::new();
        socket.read_to_end(&mut received).await.unwrap();
        assert!(received == expected);
        socket.write_all(&sent).await.unwrap();
    });
    rig.until(|client| client.channels[&1].server_lowered).await;
    assert!(rig.client.channels[&1].received == answer);
}

#[tokio::test]
async fn a_port_that_was_never_listed_is_refused_and_nothing_is_dialled() {
    let mut rig = Rig::ready().await;
    let (route, desktop) = rig.desktop().await;
    rig.client.raise(1, &route.port_name());
    rig.client.raise(2, "127.0.0.1");
    rig.until(|client| client.channels[&1].refused.is_some() && client.channels[&2].refused.is_some())
        .await;
    rig.open_channel(3, &route).await;
    let first = desktop.listener.accept().await.unwrap();
    let more = tokio::time::timeout(Duration::ZERO, desktop.listener.accept()).await;
    assert!(more.is_err());
    drop(first);
}

#[tokio::test]
async fn a_route_that_was_taken_from_the_grant_is_not_dialled_any_more() {
    let mut rig = Rig::ready().await;
    let (route, _desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    rig.grant.remove_route(route.id());
    rig.client.raise(2, &route.port_name());
    rig.until(|client| client.channels[&2].refused.is_some()).await;
}

#[tokio::test]
async fn a_desktop_that_refuses_is_told_to_the_client_in_words() {
    let mut rig = Rig::ready().await;
    let (route, desktop) = rig.desktop().await;
    drop(desktop);
    rig.listen(&route, false).await.unwrap();
    rig.client.raise(1, &route.port_name());
    rig.until(|client| client.channels[&1].refused.is_some()).await;
    assert_eq!(
        rig.client.channels[&1].refused.as_deref(),
        Some("the desktop refuses connections")
    );
}

#[tokio::test]
async fn revocation_stops_the_tunnel_in_one_poll_and_says_why() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    socket.write_all(&pattern(400_000)).await.unwrap();
    rig.store.revoke(rig.grant.id(), CloseReason::Killed);
    rig.until(|client| client.stopped.is_some()).await;
    assert_eq!(rig.client.stopped.as_deref(), Some("session was ended"));
    assert!(
        rig.client.channels[&1].received.len() <= 9 * 10_240,
        "data went on after the end"
    );
    assert!(rig.body_has_ended().await);
    assert!(rig.registry.is_empty());
    // Octets that the desktop had sent are still unread: its end sees a reset or an end, never silence.
    assert!(!matches!(socket.read(&mut [0; 1]).await, Ok(1..)));
}

#[tokio::test(start_paused = true)]
async fn a_stuck_desktop_does_not_stall_the_others_for_ever() {
    let mut rig = Rig::ready().await;
    let (stuck_route, mut stuck) = rig.desktop().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &stuck_route).await;
    rig.open_channel(2, &route).await;
    let never_read = stuck.accept().await;
    let mut socket = desktop.accept().await;
    let began = tokio::time::Instant::now();
    socket2::SockRef::from(&never_read).set_recv_buffer_size(4_096).unwrap();
    for piece in pattern(10 << 20).chunks(10_240) {
        rig.client.send(1, piece);
    }
    rig.client.send(2, b"behind it");
    rig.pump_until(async { assert_eq!(read(&mut socket, 9).await, b"behind it") })
        .await;
    assert_eq!(began.elapsed().as_secs(), LOST_CONTACT.as_secs() / 2);
    rig.until(|client| client.channels[&1].server_lowered).await;
    assert!(!rig.client.channels[&2].server_lowered);
}

#[tokio::test]
async fn a_reconnect_goes_on_in_the_middle_of_a_transfer_without_loss() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let socket = desktop.accept().await;
    let (mut from_client, mut to_client) = socket.into_split();
    let (up, down) = (pattern(1 << 20), pattern((1 << 20) + 5));
    let answer = down.clone();
    rig.tasks
        .spawn(async move { to_client.write_all(&answer).await.unwrap() });
    let received = rig.tasks.spawn(async move { read(&mut from_client, 1 << 20).await });
    for piece in up.chunks(10_240) {
        rig.client.send(1, piece);
    }
    for part in 1..8 {
        rig.until(|client| client.channels[&1].received.len() > part << 17)
            .await;
        rig.lose_connection_mid_chunk().await;
        rig.resume().unwrap();
    }
    rig.until(|client| client.channels[&1].received.len() == down.len())
        .await;
    let received = rig.pump_until(received).await.unwrap();
    assert!(received == up);
    assert!(rig.client.channels[&1].received == down);
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_lost_while_a_desktop_is_slow_loses_nothing_of_what_was_not_read() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    let sent = pattern(16 << 20);
    for piece in sent.chunks(10_240) {
        rig.client.send(1, piece);
    }
    // The tunnel does not read any further, in the middle of a piece.
    while tokio::time::timeout(Duration::from_millis(50), rig.pump())
        .await
        .is_ok()
    {}
    rig.break_off().await;
    rig.resume().unwrap();
    assert!(rig.pump_until(read(&mut socket, sent.len())).await == sent);
}

#[tokio::test(start_paused = true)]
async fn a_clean_end_delivers_what_the_client_sent_before() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    while rig.carries_all().await {
        rig.client.send(1, &pattern(10_240));
    }
    // The queue is full. Once it has just enough room for the rest, the client ends.
    let mut received = Vec::new();
    while !rig.carries_all().await {
        received.extend(read(&mut socket, 10_240).await);
    }
    let sent = rig.client.channels[&1].sent.clone();
    let ((), rest) = tokio::join!(rig.end_cleanly(), socket.read_to_end(&mut received));
    rest.unwrap();
    assert!(received == sent);
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_channel_waits_while_the_client_is_away() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    rig.client.lower(1);
    rig.pump_until(async { assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0) })
        .await;
    rig.break_off().await;
    tokio::time::advance(LOST_CONTACT * 2).await;
    tokio::task::yield_now().await;
    rig.resume().unwrap();
    rig.client.say(&Message::EchoRequest { now: None });
    rig.until(|client| client.heard.contains(&Message::EchoReply)).await;
    socket.write_all(b"answer").await.unwrap();
    drop(socket);
    rig.until(|client| client.channels[&1].server_lowered).await;
    assert_eq!(rig.client.channels[&1].received, b"answer");
}

#[tokio::test(start_paused = true)]
async fn a_half_closed_channel_of_a_client_that_listens_is_kept_until_it_says_otherwise() {
    let mut rig = Rig::listening().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    rig.client.lower(1);
    rig.pump_until(async { assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0) })
        .await;
    for _ in 0..60 {
        rig.pump_until(tokio::time::sleep(LOST_CONTACT / 2)).await;
        rig.client.say(&Message::EchoRequest { now: None });
    }
    socket.write_all(b"answer").await.unwrap();
    rig.until(|client| client.channels[&1].received == b"answer").await;
    rig.client.lower(1);
    rig.until(|client| client.channels[&1].server_lowered).await;
    rig.pump_until(async { assert!(socket.read(&mut [0; 1]).await.is_ok_and(|octets| octets == 0)) })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stays_away_ends_the_tunnel_after_the_reconnect_window() {
    let mut rig = Rig::ready().await;
    rig.lose_connection_mid_chunk().await;
    let away = tokio::time::Instant::now();
    rig.ended().await;
    assert_eq!(away.elapsed().as_secs(), RECONNECT_WINDOW.as_secs());
    assert_eq!(rig.resume().unwrap_err(), Refusal::NotResumable);
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_given_up_and_may_come_back() {
    let mut rig = Rig::ready().await;
    let began = tokio::time::Instant::now();
    while rig.body.frame().await.is_some() {}
    assert_eq!(began.elapsed().as_secs(), LOST_CONTACT.as_secs());
    rig.resume().unwrap();
    rig.client.say(&Message::EchoRequest { now: None });
    rig.until(|client| client.heard.contains(&Message::EchoReply)).await;
}

#[tokio::test]
async fn a_wrong_secret_resumes_nothing() {
    let mut rig = Rig::ready().await;
    rig.client.reconnect_secret = Some(crate::types::Secret::new("guess"));
    assert_eq!(rig.resume().unwrap_err(), Refusal::NotResumable);
    rig.client.say(&Message::EchoRequest { now: None });
    rig.until(|client| client.heard.contains(&Message::EchoReply)).await;
}

#[tokio::test]
async fn a_second_tunnel_of_a_session_ends_the_first() {
    let mut rig = Rig::ready().await;
    let mut other = rig.node.clone().open();
    rig.until(|client| client.stopped.is_some()).await;
    assert_eq!(rig.client.stopped.as_deref(), Some(CloseReason::Resumed.words()));
    while rig.body.frame().await.is_some() {}
    other.start().await;
    assert_eq!(rig.registry.len(), 1);
}

#[tokio::test]
async fn a_drain_ends_the_tunnel_with_words() {
    let mut rig = Rig::ready().await;
    rig.drain.cancel();
    rig.until(|client| client.stopped.is_some()).await;
    assert_eq!(rig.client.stopped.as_deref(), Some("node shuts down"));
    rig.ended().await;
}

#[tokio::test]
async fn bytes_that_are_no_tunnel_end_it() {
    let mut rig = Rig::ready().await;
    rig.client.wire.extend(b"GET / HTTP/1.1\r\n");
    rig.until(|client| client.stopped.is_some()).await;
    assert_eq!(rig.client.stopped.as_deref(), Some("not the protocol"));
    rig.ended().await;
}

#[tokio::test]
async fn a_client_that_goes_before_it_started_leaves_nothing_behind() {
    let mut rig = Node::new().open();
    rig.lose_connection_mid_chunk().await;
    rig.ended().await;
}

#[tokio::test]
async fn listening_again_names_the_same_port_and_a_single_use_another() {
    let mut rig = Rig::ready().await;
    let (route, _desktop) = rig.desktop().await;
    assert_eq!(rig.listen(&route, false).await, Ok(40_001));
    assert_eq!(rig.listen(&route, false).await, Ok(40_001));
    assert_eq!(rig.listen(&route, true).await, Ok(40_002));
    rig.client.raise(1, &format!("{}.1", route.port_name()));
    rig.until(|client| client.channels[&1].open).await;
    assert_eq!(rig.listen(&route, true).await, Ok(40_003));
}

#[tokio::test(start_paused = true)]
async fn a_client_that_does_not_answer_fails_the_listening_only() {
    let mut rig = Rig::ready().await;
    let (route, _desktop) = rig.desktop().await;
    let fault = rig.handle().listen(route.clone(), false).await;
    assert_eq!(fault, Err(ListenFault::Timeout));
    assert_eq!(rig.listen(&route, false).await, Ok(40_001));
}

#[tokio::test]
async fn taking_a_route_back_ends_its_channels() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.open_channel(1, &route).await;
    let mut socket = desktop.accept().await;
    rig.handle().unlisten(route.id()).await;
    rig.until(|client| client.channels[&1].server_lowered).await;
    assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0);
    rig.until(|client| client.ports.is_empty()).await;
}

#[tokio::test]
async fn sockets_and_places_are_given_back() {
    let mut rig = Rig::ready().await;
    let (route, mut desktop) = rig.desktop().await;
    rig.listen(&route, false).await.unwrap();
    for channel in 1..300 {
        rig.client.raise(channel, &route.port_name());
        rig.until(|client| client.channels[&channel].open).await;
        rig.client.send(channel, b"x");
        rig.client.lower(channel);
        let mut socket = desktop.accept_while(&mut rig).await;
        rig.pump_until(async { assert_eq!(read(&mut socket, 1).await, b"x") })
            .await;
        rig.pump_until(async { assert_eq!(socket.read(&mut [0; 1]).await.unwrap(), 0) })
            .await;
        drop(socket);
        rig.until(|client| client.channels[&channel].server_lowered).await;
    }
    rig.end_cleanly().await;
}

#[test]
fn an_idle_tunnel_is_small() {
    assert!(size_of::<Tunnel>() <= 1_024, "{}", size_of::<Tunnel>());
    assert!(size_of::<Desktop>() <= 256, "{}", size_of::<Desktop>());
}
