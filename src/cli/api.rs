//! The CLI's side of the admin API: one call over the node's Unix socket, or over TLS to its admin port.

use std::fmt;
use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;
use zeroize::Zeroizing;

use crate::admin::api::Problem;
use crate::cli::Exit;
use crate::client::{self, DialCause, DialFault, Endpoint, Trust};
use crate::types::Thumbprint;

/// Longest answer, in bytes: a million sessions fit.
const ANSWER_MAX: usize = 512 * 1024 * 1024;
const DEADLINE: Duration = Duration::from_secs(30);

/// Which node is asked, and how.
#[derive(Args, Debug)]
pub struct NodeArguments {
    /// The node's Unix socket
    #[arg(
        long,
        env = "PORTCULLIS_SOCKET",
        default_value = "/run/portcullis/admin.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
    /// The admin port of a node that is asked instead
    #[arg(
        long,
        value_name = "URL",
        requires = "token_file",
        help = "Ask a node at its admin port instead, such as https://gw-1.example.com:9443"
    )]
    pub node: Option<NodeUrl>,
    /// With --node: the file that holds the token, and nothing else
    #[arg(long, env = "PORTCULLIS_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Trust the authorities in this PEM file, not the system's
    #[arg(long, value_name = "FILE", conflicts_with = "thumbprint")]
    pub ca: Option<PathBuf>,
    /// With --node: trust the certificate of this SHA-256 thumbprint, and no other
    #[arg(long, value_name = "SHA256")]
    pub thumbprint: Option<Thumbprint>,
}

/// The admin port of a node, as it is written: `https://HOST[:PORT]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeUrl(Endpoint);

impl FromStr for NodeUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write https://HOST or https://HOST:PORT".to_owned();
        let authority = text.strip_prefix("https://").ok_or_else(wrong)?;
        let authority = authority.strip_suffix('/').unwrap_or(authority);
        let authority: Authority = authority.parse().map_err(|_| wrong())?;
        if authority.as_str().contains('@') {
            return Err("write no user into it: the token says who asks".to_owned());
        }
        let port = authority.port_u16().unwrap_or(ADMIN_PORT);
        let endpoint = format!("{}:{port}", authority.host()).parse();
        endpoint.map(Self).map_err(|_| wrong())
    }
}

impl fmt::Display for NodeUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "https://{}", self.0)
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallFault {
    /// Nobody answers on the socket.
    #[error("No node answers on {}: {cause}. Is it running, and is this the right --socket?", socket.display())]
    Unreachable {
        /// The socket.
        socket: PathBuf,
        /// What the system said.
        cause: io::Error,
    },
    /// The socket belongs to someone else.
    #[error("{} may be opened by its owner only. Run the command as the user that the node runs as, or as root.", .0.display())]
    NotAllowed(PathBuf),
    /// Nobody answers at the admin port.
    #[error("No node answers at https://{0}.")]
    NotDialled(DialFault),
    /// The certificate at the admin port is not to be trusted.
    #[error(
        "The certificate of {node} is not trusted. Its SHA-256 thumbprint is\n  {thumbprint}\nCompare it with the one \
         that the node's log tells at start; if they are equal, give it with --thumbprint, or --ca FILE for its authority."
    )]
    Untrusted {
        /// The admin port.
        node: NodeUrl,
        /// Of the certificate that is there.
        thumbprint: Thumbprint,
    },
    /// The certificate authorities, or the token, cannot be read.
    #[error("{0}.")]
    File(String),
    /// The node refused.
    #[error("{detail}")]
    Refused {
        /// The status of its answer.
        status: StatusCode,
        /// Its words.
        detail: String,
    },
    /// The system has nothing left for this process.
    #[error("Cannot begin: {0}.")]
    NoRuntime(io::Error),
    /// The node's answer cannot be read.
    #[error("The node's answer cannot be read: {0}. Are the node and this program of one version?")]
    Unreadable(String),
}

impl CallFault {
    /// The exit code that says so.
    pub fn exit(&self) -> Exit {
        match self {
            Self::Unreachable { .. } | Self::NotDialled(_) => Exit::Unreachable,
            Self::NotAllowed(_) | Self::Untrusted { .. } => Exit::NotAllowed,
            Self::Refused { status, .. } if NOT_ALLOWED.contains(status) => Exit::NotAllowed,
            Self::Refused { .. } | Self::File(_) | Self::NoRuntime(_) | Self::Unreadable(_) => Exit::Failed,
        }
    }

    /// Whether the same call may go well a moment later.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Self::Unreachable { .. } | Self::NotDialled(_) | Self::Unreadable(_)
        )
    }
}

/// Waits for a call, on a runtime of its own.
///
/// # Errors
///
/// That of the call.
pub fn wait<T>(call: impl Future<Output = Result<T, CallFault>>) -> Result<T, CallFault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(CallFault::NoRuntime)?.block_on(call)
}

/// One JSON document: the API's fields, and which document it is.
pub fn document(schema: &str, content: &impl Serialize) -> String {
    let mut value = serde_json::to_value(content).unwrap_or_default();
    if let Some(object) = value.as_object_mut() {
        object.insert("schema".to_owned(), format!("portcullis.{schema}.v1").into());
    }
    format!("{value:#}\n")
}

/// Calls the node and reads its answer; an empty answer reads as `null`.
///
/// # Errors
///
/// [`CallFault`], fit to be shown.
pub async fn call<T: DeserializeOwned>(
    node: &NodeArguments,
    method: Method,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, CallFault> {
    call_within(DEADLINE, node, method, path, body).await
}

/// The same for what takes the node longer.
///
/// # Errors
///
/// As [`call`].
pub async fn call_within<T: DeserializeOwned>(
    patience: Duration,
    node: &NodeArguments,
    method: Method,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, CallFault> {
    let unreadable = |fault: String| CallFault::Unreadable(fault);
    let body = body.map(serde_json::to_vec).transpose();
    let body = Bytes::from(body.map_err(|fault| unreadable(fault.to_string()))?.unwrap_or_default());
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(CONTENT_TYPE, "application/json");
    let exchanged = match &node.node {
        None => {
            let request = request.header(HOST, "node").body(Full::new(body));
            let stream = open(&node.socket).await?;
            timeout(patience, exchange(stream, request)).await
        }
        Some(url) => {
            let token = node.token().await?;
            let request = request
                .header(HOST, url.0.to_string())
                .header(AUTHORIZATION, token)
                .body(Full::new(body));
            let stream = node.dial(url).await?;
            timeout(patience, exchange(stream, request)).await
        }
    };
    let (status, answer) = exchanged
        .map_err(|_| unreadable("it did not come in time".to_owned()))?
        .map_err(|fault| unreadable(fault.to_string()))?;
    if !status.is_success() {
        let problem = serde_json::from_slice::<Problem>(&answer);
        let detail = problem.map_or_else(|_| status.to_string(), |problem| problem.detail);
        return Err(CallFault::Refused { status, detail });
    }
    let document: &[u8] = if answer.is_empty() { b"null" } else { &answer };
    serde_json::from_slice(document).map_err(|fault| unreadable(fault.to_string()))
}

impl NodeArguments {
    /// A connection to the admin port.
    async fn dial(&self, url: &NodeUrl) -> Result<TlsStream<TcpStream>, CallFault> {
        let trust = match (&self.thumbprint, &self.ca) {
            (Some(thumbprint), _) => Trust::thumbprint(*thumbprint),
            (None, Some(file)) => Trust::authorities(file).map_err(|fault| CallFault::File(fault.to_string()))?,
            (None, None) => Trust::system(None),
        };
        client::dial(&trust, &url.0).await.map_err(|fault| {
            let judgement = match &fault.cause {
                DialCause::Certificate(judgement) => judgement.untrusted(),
                DialCause::Connect(_)
                | DialCause::TimedOut
                | DialCause::Handshake(_)
                | DialCause::Known(_)
                | DialCause::Address(_)
                | DialCause::Setup(_) => None,
            };
            match judgement {
                Some(thumbprint) => CallFault::Untrusted {
                    node: url.clone(),
                    thumbprint,
                },
                None => CallFault::NotDialled(fault),
            }
        })
    }

    /// What stands in `Authorization`.
    async fn token(&self) -> Result<HeaderValue, CallFault> {
        let file = self.token_file.as_deref().unwrap_or(Path::new(""));
        let fault = |words: &str| CallFault::File(format!("{}: {words}", file.display()));
        let read = async {
            let mut text = Zeroizing::new(String::new());
            let open = tokio::fs::File::open(file).await?;
            open.take(TOKEN_MAX).read_to_string(&mut text).await?;
            io::Result::Ok(text)
        };
        let text = read
            .await
            .map_err(|cause| fault(&format!("the token cannot be read ({cause})")))?;
        let mut value =
            HeaderValue::from_str(&format!("Bearer {}", text.trim())).map_err(|_| fault("there is no token in it"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

async fn open(socket: &Path) -> Result<UnixStream, CallFault> {
    UnixStream::connect(socket).await.map_err(|cause| {
        if cause.kind() == io::ErrorKind::PermissionDenied {
            CallFault::NotAllowed(socket.to_owned())
        } else {
            CallFault::Unreachable {
                socket: socket.to_owned(),
                cause,
            }
        }
    })
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: http::Result<Request<Full<Bytes>>>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let request = request?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let answered = async move {
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = Limited::new(body, ANSWER_MAX)
            .collect()
            .await
            .map_err(anyhow::Error::from_boxed)?;
        anyhow::Ok((head.status, body.to_bytes()))
    };
    // The connection ends by itself once the answer is read and its sender is gone.
    let (answer, _) = tokio::join!(answered, connection);
    answer
}

/// The port of a node that is named without one.
const ADMIN_PORT: u16 = 9443;
/// Longest file of a token, in bytes.
const TOKEN_MAX: u64 = 4096;
const NOT_ALLOWED: [StatusCode; 3] = [
    StatusCode::UNAUTHORIZED,
    StatusCode::FORBIDDEN,
    StatusCode::TOO_MANY_REQUESTS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_named_by_its_url() {
        let read = |text: &str| text.parse::<NodeUrl>().map(|url| url.to_string());
        assert_eq!(
            read("https://gw-1.example.com").unwrap(),
            "https://gw-1.example.com:9443"
        );
        assert_eq!(read("https://10.0.0.11:9444/").unwrap(), "https://10.0.0.11:9444");
        assert_eq!(read("https://[fd00::1]").unwrap(), "https://[fd00::1]:9443");
        for wrong in [
            "",
            "gw-1",
            "http://gw-1:9443",
            "https://",
            "https://gw-1/api",
            "https://a@gw-1",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
