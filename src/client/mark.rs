//! Asks a node for its answer to a mark: which node does an address lead to?
//!
//! The certificate is looked at and not judged. What counts is the answer, which only the node itself can give, and nothing
//! that is worth anything is sent.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, HOST};
use http::{HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, Error};
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::endpoint::Endpoint;
use crate::secure::{Judge, Shown, judged_by};
use crate::types::{Mark, MarkAnswer, Thumbprint};

/// What stood at the end of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The node's answer to the mark.
    pub answer: MarkAnswer,
    /// The certificate that it showed.
    pub thumbprint: Thumbprint,
}

/// Why there was no answer to a mark, with the step at which it ended.
#[derive(Debug, thiserror::Error)]
pub enum MarkFault {
    /// The name has no address.
    #[error("its name cannot be resolved ({0})")]
    Unresolved(io::Error),
    /// No TCP connection.
    #[error("no connection ({0})")]
    Connect(io::Error),
    /// No agreement on TLS.
    #[error("no TLS ({0})")]
    Tls(io::Error),
    /// Something that is no gateway answers.
    #[error("what answers there is no gateway ({0})")]
    Foreign(String),
    /// Not in time.
    #[error("no answer in time ({0})")]
    TimedOut(Stage),
}

/// What was waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The address of the name.
    Resolving,
    /// The TCP connection.
    Connecting,
    /// TLS.
    Securing,
    /// The answer.
    Asking,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Resolving => "resolving its name",
            Self::Connecting => "connecting",
            Self::Securing => "agreeing TLS",
            Self::Asking => "waiting for the reply",
        })
    }
}

/// Asks whoever is at `endpoint` for the answer to `mark`: resolve, connect, agree TLS, ask, all within `limit`.
///
/// Cancel-safe: the connection is dropped.
///
/// # Errors
/// [`MarkFault`] says how far it came.
pub async fn ask(endpoint: &Endpoint, mark: Mark, limit: Duration) -> Result<Answered, MarkFault> {
    let deadline = Instant::now() + limit;
    let (stream, thumbprint) = secure(endpoint, deadline, &[b"http/1.1".to_vec()]).await?;
    let asked = timeout_at(deadline, exchange(stream, endpoint, mark)).await;
    let answer = asked.map_err(|_| MarkFault::TimedOut(Stage::Asking))??;
    Ok(Answered { answer, thumbprint })
}

/// Asks whoever is at `endpoint` under a name that carries a mark with its answer ([`Mark::name`]), within `limit`: whether it
/// is the node that answers so, and not another one. For ports that turn strangers away before TLS, each in its own way.
///
/// Cancel-safe: the connection is dropped.
///
/// # Errors
/// [`MarkFault`] says how far it came.
pub async fn ask_by_name(endpoint: &Endpoint, name: String, limit: Duration) -> Result<bool, MarkFault> {
    let name = ServerName::try_from(name).map_err(|fault| MarkFault::Tls(io::Error::other(fault)))?;
    match secure_as(endpoint, name, Instant::now() + limit, &[]).await {
        Ok(_) => Err(MarkFault::Foreign("it takes in strangers".to_owned())),
        Err(MarkFault::Tls(fault)) => match alert_in(&fault) {
            Some(AlertDescription::UnrecognisedName) => Ok(true),
            Some(AlertDescription::AccessDenied) => Ok(false),
            Some(_) | None => Err(MarkFault::Tls(fault)),
        },
        Err(fault) => Err(fault),
    }
}

fn alert_in(fault: &io::Error) -> Option<AlertDescription> {
    match fault.get_ref()?.downcast_ref::<Error>() {
        Some(Error::AlertReceived(alert)) => Some(*alert),
        Some(_) | None => None,
    }
}

pub(super) async fn secure(
    endpoint: &Endpoint,
    deadline: Instant,
    alpn: &[Vec<u8>],
) -> Result<(TlsStream<TcpStream>, Thumbprint), MarkFault> {
    let name = endpoint
        .server_name()
        .map_err(|fault| MarkFault::Tls(io::Error::other(fault)))?;
    secure_as(endpoint, name, deadline, alpn).await
}

async fn secure_as(
    endpoint: &Endpoint,
    name: ServerName<'static>,
    deadline: Instant,
    alpn: &[Vec<u8>],
) -> Result<(TlsStream<TcpStream>, Thumbprint), MarkFault> {
    let socket = connect(endpoint, deadline).await?;
    let witness = Arc::new(Witness::default());
    let mut config = judged_by(witness.clone())
        .map_err(|fault| MarkFault::Tls(io::Error::other(fault)))?
        .with_no_client_auth();
    config.alpn_protocols = alpn.to_vec();
    config.resumption = rustls::client::Resumption::disabled();
    let agreed = timeout_at(deadline, TlsConnector::from(Arc::new(config)).connect(name, socket)).await;
    let stream = agreed
        .map_err(|_| MarkFault::TimedOut(Stage::Securing))?
        .map_err(MarkFault::Tls)?;
    let seen = *witness.seen.lock();
    let thumbprint = seen.ok_or_else(|| MarkFault::Tls(io::ErrorKind::InvalidData.into()))?;
    Ok((stream, thumbprint))
}

async fn connect(endpoint: &Endpoint, deadline: Instant) -> Result<TcpStream, MarkFault> {
    let found = timeout_at(deadline, lookup_host((endpoint.host(), endpoint.port()))).await;
    let addresses: Vec<_> = found
        .map_err(|_| MarkFault::TimedOut(Stage::Resolving))?
        .map_err(MarkFault::Unresolved)?
        .take(MOST_ADDRESSES)
        .collect();
    let mut fault = MarkFault::Unresolved(io::ErrorKind::NotFound.into());
    for (tried, address) in addresses.iter().enumerate() {
        // One that is silent does not use up the time of the others.
        let now = Instant::now();
        let share = deadline.saturating_duration_since(now) / (addresses.len() - tried) as u32;
        fault = match timeout_at(now + share, TcpStream::connect(address)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(error)) => MarkFault::Connect(error),
            Err(_) => MarkFault::TimedOut(Stage::Connecting),
        };
    }
    Err(fault)
}

async fn exchange(stream: TlsStream<TcpStream>, endpoint: &Endpoint, mark: Mark) -> Result<MarkAnswer, MarkFault> {
    let foreign = |why: String| MarkFault::Foreign(why);
    let handshake = http1::Builder::new()
        .max_buf_size(MOST_HEAD)
        .handshake(TokioIo::new(stream))
        .await;
    let (mut sender, connection) = handshake.map_err(|fault| foreign(fault.to_string()))?;
    let mut request = Request::new(Empty::<Bytes>::new());
    *request.uri_mut() = Uri::try_from(format!("{}?{mark}", Mark::PATH)).map_err(|fault| foreign(fault.to_string()))?;
    let host = HeaderValue::try_from(endpoint.to_string()).map_err(|fault| foreign(fault.to_string()))?;
    request.headers_mut().insert(HOST, host);
    request
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
    let asking = async {
        let response = sender
            .send_request(request)
            .await
            .map_err(|fault| foreign(fault.to_string()))?;
        if response.status() != StatusCode::OK {
            return Err(foreign(format!("status {}", response.status().as_u16())));
        }
        let body = Limited::new(response.into_body(), MOST_BODY).collect().await;
        let body = body.map_err(|fault| foreign(fault.to_string()))?.to_bytes();
        let answer = str::from_utf8(&body).ok().and_then(|text| text.trim().parse().ok());
        answer.ok_or_else(|| foreign("a reply that is no answer to a mark".to_owned()))
    };
    let mut asking = std::pin::pin!(asking);
    tokio::select! {
        biased;
        answer = &mut asking => answer,
        // The connection is at its end; what it brought is still there to be read.
        _ = connection => asking.await,
    }
}

/// Notes the certificate and accepts it. Whoever shows it must hold its key nevertheless.
#[derive(Debug, Default)]
struct Witness {
    seen: Mutex<Option<Thumbprint>>,
}

impl Judge for Witness {
    fn judge(&self, shown: Shown<'_>) -> Result<(), Error> {
        *self.seen.lock() = Some(Thumbprint::of(shown.certificate));
        Ok(())
    }
}

const MOST_ADDRESSES: usize = 8;
const MOST_HEAD: usize = 16 * 1024;
const MOST_BODY: usize = 64;
