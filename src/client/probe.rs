//! What anybody can see of a gateway from outside, without a password: TLS, the health check, and whether its UDP port
//! answers. Who is behind an address is asked by [`super::mark`].

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALT_SVC, CONNECTION, HOST};
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use tokio::net::{UdpSocket, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::endpoint::Endpoint;
use super::mark::{self, MarkFault, Stage};
use super::tls::{self, DialFault, Dialer, TlsFacts};
use super::trust::Trust;

/// Whether somebody takes a connection there.
///
/// # Errors
/// Nobody does.
pub async fn knock(endpoint: &Endpoint, limit: Duration) -> io::Result<()> {
    match timeout(limit, tls::reach(endpoint)).await {
        Ok(reached) => reached.map(drop),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// What was agreed there with a certificate that is trusted, and when that expires.
///
/// # Errors
/// TLS was not agreed, or the certificate is not trusted.
pub async fn secure(endpoint: &Endpoint, trust: &Trust) -> Result<(TlsFacts, Option<Timestamp>), DialFault> {
    let (stream, facts) = Dialer::new(trust.clone()).dial(endpoint, None).await?;
    let (_, connection) = stream.get_ref();
    let leaf = connection.peer_certificates().and_then(<[_]>::first);
    let leaf = leaf.and_then(|leaf| Some(X509Certificate::from_der(leaf).ok()?.1));
    let expires = leaf.and_then(|leaf| Timestamp::from_second(leaf.validity().not_after.timestamp()).ok());
    Ok((facts, expires))
}

/// What the health check and the front page say, whoever vouches for the certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// Status of the health check: 200 in service, 503 out of it.
    pub health: StatusCode,
    /// The UDP port on which HTTP/3 is offered (RFC 7838).
    pub quic: Option<u16>,
}

/// Asks for both.
///
/// # Errors
/// There was no answer; says how far it came.
pub async fn front(endpoint: &Endpoint, limit: Duration) -> Result<Front, MarkFault> {
    let deadline = Instant::now() + limit;
    let (health, _) = head(endpoint, "/favicon.ico", deadline).await?;
    let (_, fields) = head(endpoint, "/", deadline).await?;
    Ok(Front {
        health,
        quic: offered(&fields),
    })
}

async fn head(
    endpoint: &Endpoint,
    path: &'static str,
    deadline: Instant,
) -> Result<(StatusCode, HeaderMap), MarkFault> {
    let (stream, _) = mark::secure(endpoint, deadline, &[b"http/1.1".to_vec()]).await?;
    let asked = async {
        let foreign = |fault: &dyn std::error::Error| MarkFault::Foreign(fault.to_string());
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|fault| foreign(&fault))?;
        let mut request = Request::new(Empty::<Bytes>::new());
        *request.method_mut() = Method::HEAD;
        *request.uri_mut() = Uri::from_static(path);
        let host = HeaderValue::try_from(endpoint.to_string()).map_err(|fault| foreign(&fault))?;
        request.headers_mut().insert(HOST, host);
        request
            .headers_mut()
            .insert(CONNECTION, HeaderValue::from_static("close"));
        let (response, _) = tokio::join!(sender.send_request(request), connection);
        let (head, _) = response.map_err(|fault| foreign(&fault))?.into_parts();
        Ok((head.status, head.headers))
    };
    timeout_at(deadline, asked)
        .await
        .unwrap_or(Err(MarkFault::TimedOut(Stage::Asking)))
}

/// The port of `h3=":443"`; an offer at another host is none of ours.
fn offered(fields: &HeaderMap) -> Option<u16> {
    let services = fields.get(ALT_SVC)?.to_str().ok()?;
    services.split(',').find_map(|service| {
        let authority = service.trim().strip_prefix("h3=\":")?;
        authority.split('"').next()?.parse().ok()
    })
}

/// Whether a QUIC server answers on that UDP port of the endpoint's host: an invitation in a version that does not exist
/// is answered by the list of those that do (RFC 9000, section 6.1).
///
/// # Errors
/// The name has no address, or nothing can be sent.
pub async fn answers_quic(endpoint: &Endpoint, port: u16) -> io::Result<bool> {
    let mut answered = false;
    for address in lookup_host((endpoint.host(), port)).await?.take(MOST_ADDRESSES) {
        answered = invite(address).await?;
        if answered {
            break;
        }
    }
    Ok(answered)
}

async fn invite(address: SocketAddr) -> io::Result<bool> {
    let own: SocketAddr = if address.is_ipv4() {
        ([0; 4], 0).into()
    } else {
        ([0_u16; 8], 0).into()
    };
    let socket = UdpSocket::bind(own).await?;
    socket.connect(address).await?;
    let id = uuid::Uuid::new_v4().into_bytes();
    let mut answer = [0; 1500];
    for _ in 0..INVITATIONS {
        socket.send(&invitation(id)).await?;
        match timeout(INVITATION, socket.recv(&mut answer)).await {
            Ok(Ok(length)) if is_version_list(&answer[..length], id) => return Ok(true),
            // Refused by ICMP: nobody is there.
            Ok(Err(_)) => return Ok(false),
            Ok(Ok(_)) | Err(_) => {}
        }
    }
    Ok(false)
}

/// A long header of a version reserved for this purpose, as long as a first packet has to be.
fn invitation(id: [u8; 16]) -> [u8; 1200] {
    let mut packet = [0; 1200];
    packet[0] = 0xc0;
    packet[1..5].copy_from_slice(&0x1a2a_3a4a_u32.to_be_bytes());
    packet[5] = 8;
    packet[6..14].copy_from_slice(&id[..8]);
    packet[14] = 8;
    packet[15..23].copy_from_slice(&id[8..]);
    packet
}

/// Version 0 and our own connection ids, exchanged.
fn is_version_list(packet: &[u8], id: [u8; 16]) -> bool {
    let mut ours = vec![0, 0, 0, 0, 8];
    ours.extend_from_slice(&id[8..]);
    ours.push(8);
    ours.extend_from_slice(&id[..8]);
    packet.first().is_some_and(|first| first & 0x80 != 0) && packet[1..].starts_with(&ours)
}

const MOST_ADDRESSES: usize = 8;
const INVITATIONS: usize = 3;
const INVITATION: Duration = Duration::from_millis(700);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_of_http3_names_its_port() {
        let of = |text: &'static str| {
            let mut fields = HeaderMap::new();
            fields.insert(ALT_SVC, HeaderValue::from_static(text));
            offered(&fields)
        };
        assert_eq!(of("h3=\":8443\"; ma=3600"), Some(8443));
        assert_eq!(of("h2=\":443\", h3=\":443\""), Some(443));
        assert_eq!(of("clear"), None);
        assert_eq!(of("h3=\"other.example:443\""), None);
    }

    #[tokio::test]
    async fn a_server_that_lists_its_versions_answers() {
        let server = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = server.local_addr().unwrap().port();
        let serve = async {
            let mut packet = [0; 1500];
            let (length, from) = server.recv_from(&mut packet).await.unwrap();
            assert_eq!(length, 1200, "shorter ones are not answered");
            let mut answer = vec![0x80, 0, 0, 0, 0, 8];
            answer.extend_from_slice(&packet[15..23]);
            answer.push(8);
            answer.extend_from_slice(&packet[6..14]);
            answer.extend_from_slice(&1_u32.to_be_bytes());
            server.send_to(b"something else", from).await.unwrap();
            server.send_to(&answer, from).await.unwrap();
        };
        let endpoint = "127.0.0.1".parse().unwrap();
        let (answered, ()) = tokio::join!(answers_quic(&endpoint, port), serve);
        // What is no list of versions is passed over, and the next invitation finds the list.
        assert!(answered.unwrap());
    }

    #[tokio::test]
    async fn a_closed_port_does_not_answer() {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let port = socket.local_addr().unwrap().port();
        drop(socket);
        assert!(!answers_quic(&"127.0.0.1".parse().unwrap(), port).await.unwrap());
    }
}
