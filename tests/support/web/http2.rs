//! A client of HTTP/2, and one that breaks its rules frame by frame.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::ext::Protocol;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::browser::{Answer, Ask};
use crate::support::{Gateway, PATIENCE};

/// A connection on which the test waits for each answer.
pub struct Http2 {
    runtime: Runtime,
    send: SendRequest<Bytes>,
}

impl Http2 {
    /// Connects and agrees on HTTP/2.
    pub fn connect(gateway: &Gateway) -> Self {
        Self::connect_to(gateway, gateway.address)
    }

    /// The same at another of its addresses.
    pub fn connect_to(gateway: &Gateway, address: SocketAddr) -> Self {
        let connector = TlsConnector::from(tls(gateway, &[b"h2"]));
        Self::over(address, async |io| {
            let name = ServerName::try_from("localhost").unwrap();
            let io = connector.connect(name, io).await.unwrap();
            assert_eq!(io.get_ref().1.alpn_protocol(), Some(&b"h2"[..]), "HTTP/2 is agreed");
            io
        })
    }

    /// Connects to whoever speaks HTTP/2 without TLS.
    pub fn plain(address: SocketAddr) -> Self {
        Self::over(address, async |io| io)
    }

    fn over<T>(address: SocketAddr, secure: impl AsyncFnOnce(tokio::net::TcpStream) -> T) -> Self
    where
        T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let send = runtime.block_on(async {
            let io = tokio::net::TcpStream::connect(address).await.unwrap();
            io.set_nodelay(true).unwrap();
            let (send, connection) = h2::client::handshake(secure(io).await).await.unwrap();
            tokio::runtime::Handle::current().spawn(async move {
                // How it ended is seen by whoever asks on it.
                let _ = connection.await;
            });
            send
        });
        Self { runtime, send }
    }

    /// Asks, and reads the whole answer.
    pub fn ask(&mut self, ask: &Ask) -> io::Result<Answer> {
        let exchange = async {
            let mut send = self.send.clone().ready().await.map_err(io::Error::other)?;
            let has_body = ask.body.is_some() || !ask.trailers.is_empty();
            let (answer, mut body) = send.send_request(request(ask), !has_body).map_err(io::Error::other)?;
            if has_body {
                let bytes = Bytes::from(ask.body.clone().unwrap_or_default());
                // Whoever answers before the end may reset the rest.
                let _ = body.send_data(bytes, ask.trailers.is_empty());
                if !ask.trailers.is_empty() {
                    let _ = body.send_trailers(map(&ask.trailers));
                }
            }
            receive(answer).await
        };
        let within = async { timeout(PATIENCE, exchange).await };
        self.runtime.block_on(within).map_err(io::Error::other)?
    }

    /// Sends the head of a request; with its end, if `ends`, or else its body is still to come.
    pub fn begin(&mut self, ask: &Ask, ends: bool) -> Begun<'_> {
        let beginning = async {
            let mut send = self.send.clone().ready().await.unwrap();
            send.send_request(request(ask), ends).unwrap()
        };
        let (answer, out) = self.runtime.block_on(beginning);
        Begun {
            runtime: &self.runtime,
            out,
            answer,
        }
    }

    /// Asks many at one time; the answers stand in the order of the questions.
    pub fn ask_all(&mut self, asks: &[Ask]) -> Vec<Answer> {
        let exchange = async {
            let mut answers = Vec::new();
            for ask in asks {
                let mut send = self.send.clone().ready().await.unwrap();
                let (answer, _) = send.send_request(request(ask), true).unwrap();
                answers.push(answer);
            }
            let mut read = Vec::new();
            for answer in answers {
                read.push(receive(answer).await.unwrap());
            }
            read
        };
        let within = async { timeout(PATIENCE, exchange).await };
        self.runtime.block_on(within).expect("answers in time")
    }

    /// Asks for a WebSocket (RFC 8441): the status, and the stream if it is 200.
    pub fn open(&mut self, host: &str, target: &str) -> (u16, Option<Duplex<'_>>) {
        let (answer, duplex) = self.open_answered(host, target);
        (answer.status, duplex)
    }

    /// The same with the head of the answer.
    pub fn open_answered(&mut self, host: &str, target: &str) -> (Answer, Option<Duplex<'_>>) {
        let opening = async {
            let mut send = self.send.clone().ready().await.unwrap();
            let offered = async {
                // The gateway's settings may still be on their way.
                while !send.is_extended_connect_protocol_enabled() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, offered)
                .await
                .expect("the gateway offers extended CONNECT");
            let mut request = Request::builder()
                .method("CONNECT")
                .uri(format!("https://{host}{target}"))
                .header("sec-websocket-version", "13")
                .header("origin", format!("https://{host}"))
                .body(())
                .unwrap();
            request.extensions_mut().insert(Protocol::from_static("websocket"));
            let (answer, out) = send.send_request(request, false).unwrap();
            let answer = answer.await.unwrap();
            (answer, out)
        };
        let within = async { timeout(PATIENCE, opening).await };
        let (answer, out) = self.runtime.block_on(within).expect("an answer in time");
        let (head, incoming) = answer.into_parts();
        let answer = Answer {
            status: head.status.as_u16(),
            head: listed(&head.headers),
            ..Answer::default()
        };
        let duplex = Duplex {
            runtime: &self.runtime,
            out,
            incoming,
        };
        let is_open = answer.status == 200;
        (answer, is_open.then_some(duplex))
    }
}

/// A request that is on its way.
pub struct Begun<'a> {
    runtime: &'a Runtime,
    out: SendStream<Bytes>,
    answer: ResponseFuture,
}

impl<'a> Begun<'a> {
    /// Sends some of its body.
    pub fn send(&mut self, bytes: &[u8]) {
        self.out.send_data(Bytes::copy_from_slice(bytes), false).unwrap();
    }

    /// Waits for the head of the answer; what is left of both bodies passes by the stream.
    pub fn answered(self) -> (Answer, Duplex<'a>) {
        let within = async { timeout(PATIENCE, self.answer).await };
        let answer = self.runtime.block_on(within).expect("an answer in time").unwrap();
        let (head, incoming) = answer.into_parts();
        let answer = Answer {
            status: head.status.as_u16(),
            head: listed(&head.headers),
            ..Answer::default()
        };
        let duplex = Duplex {
            runtime: self.runtime,
            out: self.out,
            incoming,
        };
        (answer, duplex)
    }
}

/// A stream that carries bytes both ways.
pub struct Duplex<'a> {
    runtime: &'a Runtime,
    out: SendStream<Bytes>,
    incoming: RecvStream,
}

impl Duplex<'_> {
    pub fn send(&mut self, bytes: &[u8]) {
        assert!(self.try_send(bytes), "the stream is open");
    }

    /// The same; whether the stream is open.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.out.send_data(Bytes::copy_from_slice(bytes), false).is_ok()
    }

    pub fn finish(&mut self) {
        self.out.send_data(Bytes::new(), true).unwrap();
    }

    /// Waits for so many bytes, or the end.
    pub fn receive(&mut self, length: usize) -> Vec<u8> {
        let mut received = Vec::new();
        let incoming = &mut self.incoming;
        let receiving = async {
            while received.len() < length {
                match incoming.data().await {
                    Some(Ok(data)) => {
                        incoming.flow_control().release_capacity(data.len()).unwrap();
                        received.extend_from_slice(&data);
                    }
                    Some(Err(_)) | None => break,
                }
            }
        };
        let within = async { timeout(PATIENCE, receiving).await };
        self.runtime.block_on(within).expect("bytes in time");
        received
    }
}

fn request(ask: &Ask) -> Request<()> {
    let mut request = Request::builder()
        .method(ask.method.as_str())
        .uri(format!("https://{}{}", ask.host, ask.target))
        .body(())
        .unwrap_or_else(|fault| panic!("{ask:?}: {fault}"));
    *request.headers_mut() = map(&ask.fields);
    if let Some(body) = &ask.body {
        request.headers_mut().insert("content-length", body.len().into());
        if !ask.trailers.is_empty() {
            request.headers_mut().remove("content-length");
        }
    }
    request
}

fn map(fields: &[(String, String)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in fields {
        let name: HeaderName = name.to_ascii_lowercase().parse().unwrap();
        map.append(name, HeaderValue::from_bytes(value.as_bytes()).unwrap());
    }
    map
}

fn listed(map: &HeaderMap) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    map.iter()
        .map(|(name, value)| (name.as_str().to_owned(), text(value)))
        .collect()
}

async fn receive(mut answer: ResponseFuture) -> io::Result<Answer> {
    let mut informed = Vec::new();
    let answered: Response<RecvStream> = std::future::poll_fn(|cx| {
        while let Poll::Ready(Some(Ok(head))) = answer.poll_informational(cx) {
            informed.push((head.status().as_u16(), listed(head.headers())));
        }
        std::pin::Pin::new(&mut answer).poll(cx)
    })
    .await
    .map_err(io::Error::other)?;
    let (head, mut body) = answered.into_parts();
    let mut answer = Answer {
        informed,
        version: "HTTP/2".to_owned(),
        status: head.status.as_u16(),
        head: listed(&head.headers),
        ..Answer::default()
    };
    while let Some(data) = body.data().await {
        let data = data.map_err(io::Error::other)?;
        body.flow_control()
            .release_capacity(data.len())
            .map_err(io::Error::other)?;
        answer.body.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.map_err(io::Error::other)?;
    answer.trailers = trailers.as_ref().map(listed).unwrap_or_default();
    Ok(answer)
}

/// TLS to the gateway that offers these protocols.
pub fn tls(gateway: &Gateway, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from_pem_file(gateway.chain()).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
    Arc::new(config)
}

/// A connection of HTTP/2 whose frames the test writes itself.
pub struct Frames {
    pub stream: StreamOwned<ClientConnection, TcpStream>,
}

/// A frame as it came.
#[derive(Clone, Debug)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub id: u32,
    pub payload: Vec<u8>,
}

impl Frames {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const CONTINUATION: u8 = 9;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;

    /// Connects and says hello.
    pub fn connect(gateway: &Gateway) -> Self {
        let tcp = TcpStream::connect(gateway.address).unwrap();
        tcp.set_read_timeout(Some(PATIENCE)).unwrap();
        tcp.set_write_timeout(Some(PATIENCE)).unwrap();
        tcp.set_nodelay(true).unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let connection = ClientConnection::new(tls(gateway, &[b"h2"]), name).unwrap();
        let mut frames = Self {
            stream: StreamOwned::new(connection, tcp),
        };
        frames.stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").unwrap();
        frames.write(Self::SETTINGS, 0, 0, &[]).unwrap();
        frames
    }

    /// Writes a frame.
    pub fn write(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) -> io::Result<()> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut bytes = length[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(id.to_be_bytes());
        bytes.extend_from_slice(payload);
        self.stream.write_all(&bytes)
    }

    /// The next frame; `None` at the end.
    pub fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        self.stream.read_exact(&mut head).ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).ok()?;
        Some(Frame {
            kind: head[3],
            flags: head[4],
            id: u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff,
            payload,
        })
    }

    /// Reads until a frame of that kind, or the end.
    pub fn read_until(&mut self, kind: u8) -> Option<Frame> {
        loop {
            let frame = self.read()?;
            if frame.kind == kind {
                return Some(frame);
            }
        }
    }

    /// A block of fields without indexing and without Huffman coding (RFC 7541 section 6.2.2).
    pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
        let mut block = Vec::new();
        for (name, value) in fields {
            block.push(0);
            for text in [name, value] {
                // A length over 126 takes more octets, of seven bits each.
                let length = text.len();
                if length < 127 {
                    block.push(u8::try_from(length).unwrap());
                } else {
                    block.push(127);
                    let mut rest = length - 127;
                    while rest >= 128 {
                        block.push((rest % 128) as u8 | 128);
                        rest /= 128;
                    }
                    block.push(rest as u8);
                }
                block.extend_from_slice(text.as_bytes());
            }
        }
        block
    }

    /// The fields of a request that asks for a path.
    pub fn get<'a>(host: &'a str, path: &'a str) -> [(&'a str, &'a str); 4] {
        [
            (":method", "GET"),
            (":scheme", "https"),
            (":authority", host),
            (":path", path),
        ]
    }
}
