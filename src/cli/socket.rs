//! The CLI's side of the admin API: one call over the node's Unix socket.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use http::header::{CONTENT_TYPE, HOST};
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::UnixStream;

use crate::admin::api::Problem;
use crate::cli::Exit;

/// Longest answer, in bytes: a million sessions fit.
const ANSWER_MAX: usize = 512 * 1024 * 1024;
const DEADLINE: Duration = Duration::from_secs(30);

/// Where the node's socket is.
#[derive(Args, Debug)]
pub struct SocketArguments {
    /// The node's Unix socket
    #[arg(
        long,
        env = "PORTCULLIS_SOCKET",
        default_value = "/run/portcullis/admin.sock",
        value_name = "PATH"
    )]
    pub socket: PathBuf,
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
    /// The node refused.
    #[error("{0}")]
    Refused(String),
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
            Self::Unreachable { .. } => Exit::Unreachable,
            Self::NotAllowed(_) => Exit::NotAllowed,
            Self::Refused(_) | Self::NoRuntime(_) | Self::Unreadable(_) => Exit::Failed,
        }
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
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, CallFault> {
    call_within(DEADLINE, socket, method, path, body).await
}

/// The same for what takes the node longer.
///
/// # Errors
///
/// As [`call`].
pub async fn call_within<T: DeserializeOwned>(
    patience: Duration,
    socket: &Path,
    method: Method,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> Result<T, CallFault> {
    let stream = UnixStream::connect(socket).await.map_err(|cause| {
        if cause.kind() == io::ErrorKind::PermissionDenied {
            CallFault::NotAllowed(socket.to_owned())
        } else {
            CallFault::Unreachable {
                socket: socket.to_owned(),
                cause,
            }
        }
    })?;
    let exchange = exchange(stream, method, path, body);
    let (status, answer) = tokio::time::timeout(patience, exchange)
        .await
        .map_err(|_| CallFault::Unreadable("it did not come in time".to_owned()))?
        .map_err(|fault| CallFault::Unreadable(fault.to_string()))?;
    if !status.is_success() {
        let problem = serde_json::from_slice::<Problem>(&answer);
        return Err(CallFault::Refused(
            problem.map_or_else(|_| status.to_string(), |problem| problem.detail),
        ));
    }
    let document: &[u8] = if answer.is_empty() { b"null" } else { &answer };
    serde_json::from_slice(document).map_err(|fault| CallFault::Unreadable(fault.to_string()))
}

async fn exchange(
    stream: UnixStream,
    method: Method,
    path: &str,
    body: Option<&(impl Serialize + Sync)>,
) -> anyhow::Result<(StatusCode, Bytes)> {
    let body = body.map(serde_json::to_vec).transpose()?.unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(HOST, "node")
        .header(CONTENT_TYPE, "application/json")
        .body(Full::new(Bytes::from(body)))?;
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
