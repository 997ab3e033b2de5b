//! A model gateway for the tests of the client, over loopback TLS.
//!
//! It is written from the protocol's description with the codecs alone.

mod inside;
mod lab;
mod tunnel;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rcgen::{CertificateParams, KeyPair};
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

pub(super) use self::inside::Inside;
pub(crate) use self::lab::Lab;
pub(super) use self::tunnel::{DISCONNECTED, TunnelModel, listen_request};

use super::prompter::{Prompter, Question, Unanswered};
use super::{Endpoint, Settings, Trust};
use crate::control::envelope::{Reply, Request as Envelope};
use crate::control::xml::Limits;
use crate::types::Secret;
use crate::types::Thumbprint;

/// A certificate and its key.
pub(super) struct Identity {
    pub(super) certificate: CertificateDer<'static>,
    pub(super) key: KeyPair,
}

impl Identity {
    /// A self-signed one.
    pub(super) fn new(name: &str) -> Self {
        Self::with(&CertificateParams::new([name.to_owned()]).unwrap())
    }

    pub(super) fn with(params: &CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap().der().clone();
        Self { certificate, key }
    }

    pub(super) fn thumbprint(&self) -> Thumbprint {
        Thumbprint::of(&self.certificate)
    }

    pub(super) fn key_der(&self) -> PrivateKeyDer<'static> {
        PrivatePkcs8KeyDer::from(self.key.serialize_der()).into()
    }

    pub(super) fn server_config(&self) -> ServerConfig {
        ServerConfig::builder_with_provider(Arc::new(rustls::crypto::aws_lc_rs::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![self.certificate.clone()], self.key_der())
            .unwrap()
    }
}

/// A listening gateway; it stops when dropped.
pub(super) struct Gateway {
    pub(super) address: SocketAddr,
    _running: DropGuard,
}

impl Gateway {
    /// The endpoint under the name in the test certificates.
    pub(super) fn endpoint(&self) -> Endpoint {
        format!("localhost:{}", self.address.port()).parse().unwrap()
    }
}

/// A body whose octets come one frame at a time.
pub(super) struct Frames(mpsc::Receiver<Bytes>);

impl Frames {
    pub(super) fn of(text: impl Into<Bytes>) -> Self {
        let (sender, receiver) = mpsc::channel(1);
        sender.try_send(text.into()).unwrap();
        Self(receiver)
    }

    pub(super) fn channel() -> (mpsc::Sender<Bytes>, Self) {
        let (sender, receiver) = mpsc::channel(4);
        (sender, Self(receiver))
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0
            .poll_recv(cx)
            .map(|octets| octets.map(|octets| Ok(Frame::data(octets))))
    }
}

/// Serves HTTP over TLS on a free port of 127.0.0.1.
pub(super) async fn serve<S, F>(tls: ServerConfig, service: S) -> Gateway
where
    S: Fn(Request<Incoming>) -> F + Clone + Send + 'static,
    F: Future<Output = Response<Frames>> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let running = stop.clone().drop_guard();
    let (tasks, acceptor) = (TaskTracker::new(), TlsAcceptor::from(Arc::new(tls)));
    let children = stop.clone();
    let accepting = {
        let tasks = tasks.clone();
        async move {
            while let Ok((socket, _)) = listener.accept().await {
                let (acceptor, service) = (acceptor.clone(), service.clone());
                let connection = async move {
                    let Ok(stream) = acceptor.accept(socket).await else {
                        return;
                    };
                    let service = service_fn(move |request| {
                        let response = service(request);
                        async move { Ok::<_, Infallible>(response.await) }
                    });
                    let connection = hyper::server::conn::http1::Builder::new()
                        .half_close(true)
                        .serve_connection(TokioIo::new(stream), service);
                    let _ = connection.await;
                };
                tasks.spawn(children.clone().run_until_cancelled_owned(connection));
            }
        }
    };
    tasks.spawn(stop.run_until_cancelled_owned(accepting));
    Gateway {
        address,
        _running: running,
    }
}

/// An answer with a status and nothing else.
pub(super) fn status(status: StatusCode) -> Response<Frames> {
    Response::builder().status(status).body(Frames::of("")).unwrap()
}

/// What a broker saw, and how it answers.
#[derive(Clone)]
pub(super) struct Broker<F> {
    pub(super) seen: Arc<Mutex<Vec<Envelope>>>,
    answer: F,
}

impl<F: Fn(&Envelope) -> Reply + Clone + Send + Sync + 'static> Broker<F> {
    pub(super) fn new(answer: F) -> Self {
        Self {
            seen: Arc::default(),
            answer,
        }
    }

    /// Reads an envelope and answers it.
    pub(super) async fn serve(self, request: Request<Incoming>) -> Response<Frames> {
        let envelope = envelope(request).await;
        let reply = (self.answer)(&envelope);
        let response = document(&reply, &envelope);
        self.seen.lock().push(envelope);
        response
    }
}

/// Reads the envelope of a request.
async fn envelope(request: Request<Incoming>) -> Envelope {
    let body = request.into_body().collect().await.unwrap().to_bytes();
    Envelope::read(&body, &Limits::default()).expect("the client writes what can be read")
}

/// The response with a reply.
fn document(reply: &Reply, to: &Envelope) -> Response<Frames> {
    let body = Frames::of(Bytes::copy_from_slice(reply.write(to.version).as_bytes()));
    Response::builder()
        .header("Content-Type", "text/xml;charset=UTF-8")
        .body(body)
        .unwrap()
}

/// The settings of a client that trusts one certificate.
pub(crate) fn settings(thumbprint: Thumbprint) -> Settings {
    Settings {
        trust: Trust::thumbprint(thumbprint),
        accept_new: false,
        quic: true,
        locale: None,
        tasks: TaskTracker::new(),
    }
}

/// A prompter that answers from a list and keeps what it was asked and shown.
#[derive(Default)]
pub(crate) struct Script {
    pub(super) answers: Vec<(Question, &'static str)>,
    pub(super) shown: Vec<String>,
}

impl Script {
    pub(crate) fn new(answers: impl IntoIterator<Item = (Question, &'static str)>) -> Self {
        let mut answers: Vec<_> = answers.into_iter().collect();
        answers.reverse();
        Self {
            answers,
            shown: Vec::new(),
        }
    }
}

impl Prompter for Script {
    fn show(&mut self, text: &str) {
        self.shown.push(text.to_owned());
    }

    async fn ask(&mut self, question: &Question) -> Result<Secret, Unanswered> {
        let (expected, answer) = self.answers.pop().ok_or(Unanswered::NoTerminal)?;
        assert_eq!(*question, expected);
        Ok(Secret::new(answer))
    }
}

/// Waits until `holds`, which is looked at whenever `changed` is told.
pub(super) async fn wait_until(changed: &Notify, mut holds: impl FnMut() -> bool) {
    loop {
        let told = changed.notified();
        tokio::pin!(told);
        told.as_mut().enable();
        if holds() {
            return;
        }
        told.await;
    }
}
