//! The clients that count handshakes and bytes.

use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::{Context as _, bail, ensure};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A connection through a proxy, or to the target itself.
pub(crate) enum Stream {
    Tls(Box<TlsStream<TcpStream>>),
    Plain(TcpStream),
}

/// What a client offers.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) version: &'static SupportedProtocolVersion,
    /// To take up earlier sessions.
    pub(crate) resumes: bool,
    /// The post-quantum key exchange too, which costs whoever knows it more than X25519, and the peers do not know it.
    pub(crate) hybrid: bool,
}

/// TLS that trusts the certificate in that file.
pub(crate) fn tls(chain: &Path, offer: Offer) -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(chain)?)?;
    let mut provider = aws_lc_rs::default_provider();
    if !offer.hybrid {
        provider.kx_groups = vec![aws_lc_rs::kx_group::X25519, aws_lc_rs::kx_group::SECP256R1];
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider))
        .with_protocol_versions(&[offer.version])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    if !offer.resumes {
        config.resumption = rustls::client::Resumption::disabled();
    }
    Ok(TlsConnector::from(Arc::new(config)))
}

impl Stream {
    /// Connects, with TLS if there is a connector.
    pub(crate) async fn connect(address: SocketAddr, tls: Option<&TlsConnector>) -> anyhow::Result<Self> {
        let io = TcpStream::connect(address).await?;
        io.set_nodelay(true)?;
        Ok(match tls {
            Some(tls) => Self::Tls(Box::new(tls.connect(ServerName::try_from("localhost")?, io).await?)),
            None => Self::Plain(io),
        })
    }

    /// Whether its handshake took up an earlier one.
    pub(crate) fn was_resumed(&self) -> bool {
        match self {
            Self::Tls(stream) => stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed),
            Self::Plain(_) => false,
        }
    }

    /// Asks for a path and throws the body away: how long it was. `buffer` is for what comes.
    pub(crate) async fn get(&mut self, path: &str, buffer: &mut [u8]) -> anyhow::Result<usize> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: bench\r\n\r\n");
        self.write_all(request.as_bytes()).await?;
        self.flush().await?;
        self.answer(buffer).await
    }

    /// Sends so many bytes, and reads the answer.
    pub(crate) async fn post(&mut self, path: &str, length: usize, buffer: &mut [u8]) -> anyhow::Result<usize> {
        let head = format!("POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n");
        self.write_all(head.as_bytes()).await?;
        let mut left = length;
        while left > 0 {
            let piece = left.min(buffer.len());
            self.write_all(&buffer[..piece]).await?;
            left -= piece;
        }
        self.flush().await?;
        self.answer(buffer).await
    }

    /// Reads an answer with a length.
    async fn answer(&mut self, buffer: &mut [u8]) -> anyhow::Result<usize> {
        let mut filled = 0;
        let end = loop {
            let read = self.read(&mut buffer[filled..]).await?;
            ensure!(read > 0, "no answer, or half of one");
            filled += read;
            if let Some(end) = buffer[..filled].windows(4).position(|window| window == b"\r\n\r\n") {
                break end + 4;
            }
            ensure!(filled < buffer.len(), "a head without end");
        };
        let head = std::str::from_utf8(&buffer[..end])?;
        ensure!(head.starts_with("HTTP/1.1 200"), "{head}");
        let length = length_in(head)?;
        let mut left = length.checked_sub(filled - end).context("more than the answer")?;
        while left > 0 {
            let most = left.min(buffer.len());
            match self.read(&mut buffer[..most]).await? {
                0 => bail!("ended with {left} bytes to come"),
                read => left -= read,
            }
        }
        Ok(length)
    }
}

/// The value of `Content-Length`.
pub(crate) fn length_in(head: &str) -> anyhow::Result<usize> {
    let fields = head.lines().filter_map(|line| line.split_once(':'));
    let mut of_length = fields.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let (_, length) = of_length.next().with_context(|| format!("no length: {head}"))?;
    Ok(length.trim().parse()?)
}

impl AsyncRead for Stream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Self::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Self::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match self.get_mut() {
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
