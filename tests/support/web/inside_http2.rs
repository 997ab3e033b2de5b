//! An application that speaks HTTP/2, with TLS or without: gRPC among others.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::RecvStream;
use http::{HeaderMap, Request, Response};
use parking_lot::Mutex;
use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio_rustls::TlsAcceptor;

/// A request as it came.
#[derive(Clone, Debug)]
pub struct Called {
    pub connection: usize,
    pub head: Request<()>,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
}

/// What is answered: head, pieces of the body, trailers.
pub struct Said {
    pub head: Response<()>,
    pub body: Vec<Bytes>,
    pub trailers: Option<HeaderMap>,
}

/// The application. Dropped, it is gone.
pub struct Inside {
    pub address: SocketAddr,
    called: Arc<Mutex<Vec<Called>>>,
    runtime: Option<Runtime>,
}

impl Inside {
    /// Answers each request, once it is there whole.
    pub fn new(answer: impl Fn(&Called) -> Said + Send + Sync + 'static) -> Self {
        Self::start(h2::server::Builder::new(), None, answer)
    }

    /// Takes WebSockets (RFC 8441), and sends back what comes on them; answers other requests with their path.
    pub fn echo() -> Self {
        let mut builder = h2::server::Builder::new();
        builder.enable_connect_protocol();
        Self::start(builder, None, |called| Said {
            head: Response::new(()),
            body: vec![called.head.uri().path().to_owned().into()],
            trailers: None,
        })
    }

    /// The same over TLS, with whoever agrees to `h2` by name.
    pub fn tls(config: ServerConfig, answer: impl Fn(&Called) -> Said + Send + Sync + 'static) -> Self {
        let mut config = config;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self::start(
            h2::server::Builder::new(),
            Some(TlsAcceptor::from(Arc::new(config))),
            answer,
        )
    }

    fn start(
        builder: h2::server::Builder,
        tls: Option<TlsAcceptor>,
        answer: impl Fn(&Called) -> Said + Send + Sync + 'static,
    ) -> Self {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap();
        let called: Arc<Mutex<Vec<Called>>> = Arc::default();
        let (kept, answer) = (called.clone(), Arc::new(answer));
        runtime.spawn(async move {
            let handle = tokio::runtime::Handle::current();
            let mut connection = 0;
            while let Ok((io, _)) = listener.accept().await {
                let (kept, answer, own, tls) = (kept.clone(), answer.clone(), handle.clone(), tls.clone());
                let builder = builder.clone();
                handle.spawn(async move {
                    let io: Box<dyn Io> = match tls {
                        None => Box::new(io),
                        Some(tls) => match tls.accept(io).await {
                            Ok(io) if io.get_ref().1.alpn_protocol() == Some(b"h2") => Box::new(io),
                            _ => return,
                        },
                    };
                    let Ok(mut accepted) = builder.handshake(io).await else {
                        return;
                    };
                    while let Some(Ok((request, respond))) = accepted.accept().await {
                        own.spawn(serve(request, respond, connection, kept.clone(), answer.clone()));
                    }
                });
                connection += 1;
            }
        });
        Self {
            address,
            called,
            runtime: Some(runtime),
        }
    }

    /// The requests so far, without probes.
    pub fn called(&self) -> Vec<Called> {
        let called = self.called.lock();
        let of_clients = called
            .iter()
            .filter(|called| called.head.headers().contains_key("x-forwarded-proto"));
        of_clients.cloned().collect()
    }
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn serve(
    request: Request<RecvStream>,
    mut respond: h2::server::SendResponse<Bytes>,
    connection: usize,
    kept: Arc<Mutex<Vec<Called>>>,
    answer: Arc<impl Fn(&Called) -> Said>,
) {
    let (head, mut body) = request.into_parts();
    let mut called = Called {
        connection,
        head: Request::from_parts(head, ()),
        body: Vec::new(),
        trailers: None,
    };
    if called.head.method() == "CONNECT" {
        kept.lock().push(called);
        return send_back(body, respond).await;
    }
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        called.body.extend_from_slice(&data);
    }
    called.trailers = body.trailers().await.ok().flatten();
    let said = answer(&called);
    kept.lock().push(called);
    let is_end = said.body.is_empty() && said.trailers.is_none();
    let Ok(mut out) = respond.send_response(said.head, is_end) else {
        return;
    };
    if is_end {
        return;
    }
    let last = said.body.len();
    for (number, piece) in said.body.into_iter().enumerate() {
        let _ = out.send_data(piece, said.trailers.is_none() && number + 1 == last);
    }
    if let Some(trailers) = said.trailers {
        let _ = out.send_trailers(trailers);
    }
}

/// Agrees, and sends back what comes to its end.
async fn send_back(mut body: RecvStream, mut respond: h2::server::SendResponse<Bytes>) {
    let head = Response::builder().header("sec-websocket-protocol", "chat");
    let Ok(mut out) = respond.send_response(head.body(()).unwrap(), false) else {
        return;
    };
    while let Some(Ok(data)) = body.data().await {
        let _ = body.flow_control().release_capacity(data.len());
        let _ = out.send_data(data, false);
    }
    let _ = out.send_data(Bytes::new(), true);
}
