//! The tunnel as it stands on the wire, after the heads of its request and response.

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::rig::{Node, settings};
use super::*;

#[tokio::test]
async fn one_tunnel_chunk_is_one_http_chunk_in_both_directions() {
    let node = Node::new();
    let (mut client, token) = connect(&node);
    say(
        &mut client,
        "M;1;;17;messageType=S:aW5pdA==|;2C;type=S:Qw==|v1=I:3|v2=I:1|v3=I:4|cid=S:Nzc=|;",
    )
    .await;
    assert_eq!(read_past(&mut client, "\r\n\r\n").await, HEAD);
    let please_init = "37\r\nM;1;1;1F;messageType=S:cGxlYXNlLWluaXQ=|;B;cid=S:Nzc=|;\r\n";
    assert_eq!(read_past(&mut client, ";\r\n").await, please_init);

    say(&mut client, &start(&token)).await;
    let authenticated = read_past(&mut client, ";\r\n").await;
    let (length, chunk) = authenticated.split_once("\r\n").unwrap();
    assert_eq!(usize::from_str_radix(length, 16).unwrap(), chunk.len() - 2);
    assert!(
        chunk.starts_with("M;2;2;23;messageType=S:YXV0aGVudGljYXRlZA==|;"),
        "{chunk}"
    );
    assert_eq!(
        read_past(&mut client, ";\r\n").await,
        "23\r\nM;3;;17;messageType=S:cmVhZHk=|;0;;\r\n"
    );

    say(&mut client, "M;3;3;1B;messageType=S:dW5rbm93bg==|;0;;").await;
    assert_eq!(read_past(&mut client, ";\r\n").await, "5\r\nA;03;\r\n");
    node.store.revoke(node.grant.id(), CloseReason::Logout);
    let stop = "3E\r\nM;4;;17;messageType=S:c3RvcA==|;1A;reason=S:bG9nZ2VkIG91dA==|;\r\n0\r\n\r\n";
    assert_eq!(read_past(&mut client, "0\r\n\r\n").await, stop);
    assert!(client.read_u8().await.is_err(), "the connection is not closed");
    node.ended().await;
}

#[tokio::test]
async fn a_terminal_chunk_of_the_client_is_its_clean_end() {
    let node = Node::new();
    let (mut client, token) = connect(&node);
    begin(&mut client, &token).await;
    client.write_all(b"0\r\n\r\n").await.unwrap();
    read_past(&mut client, "0\r\n\r\n").await;
    drop(client);
    node.ended().await;
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_breaks_off_leaves_the_tunnel_to_be_resumed() {
    let node = Node::new();
    let (mut client, token) = connect(&node);
    begin(&mut client, &token).await;
    let broken = tokio::time::Instant::now();
    drop(client);
    node.ended().await;
    assert_eq!(broken.elapsed(), settings().reconnect_window);
}

/// A connection that carries a tunnel, from the end of the request's head on.
fn connect(node: &Node) -> (DuplexStream, String) {
    let (client, mut server) = tokio::io::duplex(64);
    let token = node.announce();
    let carrier = node.registry.open(node.admit(&token), &token, settings(), &node.tasks);
    node.tasks.spawn(async move {
        carrier.carry(&mut server, Bytes::new(), HEAD.into()).await;
    });
    (client, token)
}

async fn begin(client: &mut DuplexStream, token: &str) {
    say(client, "M;1;;17;messageType=S:aW5pdA==|;B;cid=S:Nzc=|;").await;
    say(client, &start(token)).await;
    read_past(client, "cmVhZHk=|;0;;\r\n").await;
}

fn start(token: &str) -> String {
    use base64::Engine;
    let body = format!("capID=S:{}|", base64::engine::general_purpose::STANDARD.encode(token));
    format!("M;2;1;17;messageType=S:c3RhcnQ=|;{:X};{body};", body.len())
}

async fn say(client: &mut DuplexStream, chunk: &str) {
    client
        .write_all(format!("{:X}\r\n{chunk}\r\n", chunk.len()).as_bytes())
        .await
        .unwrap();
}

async fn read_past(client: &mut DuplexStream, end: &str) -> String {
    let mut text = String::new();
    while !text.ends_with(end) {
        text.push(char::from(client.read_u8().await.unwrap()));
    }
    text
}

const HEAD: &str = "HTTP/1.1 200 OK\r\n\r\n";
