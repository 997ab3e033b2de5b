//! A client that does whatever a test wants, down to the byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;

use portcullis::secure::judged_by;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::{Gateway, PATIENCE};

/// A TLS stream that blocks, but never for ever.
pub type Stream = StreamOwned<ClientConnection, TcpStream>;

/// TLS to the gateway, as `localhost`.
pub fn tls(gateway: &Gateway) -> Stream {
    tls_over(TcpStream::connect(gateway.address).unwrap(), &gateway.chain())
}

/// TLS over a stream that is already there, for instance behind a PROXY header.
pub fn tls_over(stream: TcpStream, chain: &Path) -> Stream {
    tls_with(Arc::new(settings(chain)), stream)
}

/// TLS as `localhost` by settings that several connections share.
pub fn tls_with(settings: Arc<ClientConfig>, stream: TcpStream) -> Stream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    StreamOwned::new(ClientConnection::new(settings, name).unwrap(), stream)
}

/// The settings of a client that trusts this certificate.
pub fn settings(chain: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(chain).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// TLS under a name that the certificate does not have: only the certificate itself is compared.
pub fn tls_named(stream: TcpStream, chain: &Path, name: &str) -> Stream {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let expected = CertificateDer::from_pem_file(chain).unwrap();
    let config = judged_by(Arc::new(super::only::This(expected)))
        .unwrap()
        .with_no_client_auth();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream)
}

/// An answer, read whole.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    /// The values of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        fields
            .filter(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim())
            .collect()
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The session cookie that the answer sets.
    pub fn session_cookie(&self) -> Option<String> {
        let set = self
            .header("set-cookie")
            .into_iter()
            .find(|value| value.starts_with("JSESSIONID="))?;
        set.split(';').next().map(str::to_owned)
    }
}

/// Reads one answer with a `Content-Length`, or until the end of the stream.
pub fn read_answer(stream: &mut impl Read) -> Answer {
    read_answer_to(stream, true)
}

/// The same for the answer to `HEAD`.
pub fn read_head(stream: &mut impl Read) -> Answer {
    read_answer_to(stream, false)
}

fn read_answer_to(stream: &mut impl Read, with_body: bool) -> Answer {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while !bytes.ends_with(b"\r\n\r\n") {
        assert_eq!(
            stream.read(&mut byte).expect("an answer"),
            1,
            "closed after {:?}",
            String::from_utf8_lossy(&bytes)
        );
        bytes.push(byte[0]);
    }
    let head = String::from_utf8(bytes).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let mut answer = Answer {
        status,
        head,
        body: Vec::new(),
    };
    let length = answer
        .header("content-length")
        .first()
        .map(|length| length.parse::<usize>().unwrap());
    if with_body {
        match length {
            Some(length) => {
                answer.body = vec![0; length];
                stream.read_exact(&mut answer.body).unwrap();
            }
            // The peer may leave TLS without a word at the end.
            None => drop(stream.read_to_end(&mut answer.body)),
        }
    }
    answer
}

/// Sends one request on a connection of its own and reads the answer.
pub fn request(gateway: &Gateway, head: &str, body: &[u8]) -> Answer {
    let mut stream = tls(gateway);
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body).unwrap();
    read_answer(&mut stream)
}

/// Posts a control message, with a cookie or without.
pub fn post(gateway: &Gateway, cookie: Option<&str>, message: &str) -> Answer {
    post_on(&mut tls(gateway), cookie, message.as_bytes())
}

/// The same on a connection that is open.
pub fn post_on(stream: &mut (impl Read + Write), cookie: Option<&str>, message: &[u8]) -> Answer {
    let cookie = cookie.map(|cookie| format!("Cookie: {cookie}\r\n")).unwrap_or_default();
    let head = format!(
        "POST /broker/xml HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\n{cookie}Content-Length: {}\r\n\r\n",
        message.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(message).unwrap();
    read_answer(stream)
}

/// Whether the peer closes the connection, without a further byte, within the test's patience.
pub fn is_closed(stream: &mut impl Read) -> bool {
    matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_))
}

/// Connects from another address of loopback, such as 127.0.0.2.
pub fn connect_from(source: [u8; 4], to: SocketAddr) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from((source, 0)).into()).unwrap();
    socket.connect(&to.into()).unwrap();
    socket.into()
}

/// The message that answers the password screen, with `batch` behind it.
pub fn password_message(user: &str, password: &str, batch: &str) -> String {
    format!(
        "<?xml version=\"1.0\"?><broker version=\"15.0\"><do-submit-authentication><screen><name>windows-password</name><params>\
         <param><name>username</name><values><value>{user}</value></values></param>\
         <param><name>password</name><values><value>{password}</value></values></param>\
         <param><name>domain</name><values><value></value></values></param>\
         </params></screen></do-submit-authentication>{batch}</broker>"
    )
}

/// A message with these operations.
pub fn message(operations: &str) -> String {
    format!("<?xml version=\"1.0\"?><broker version=\"15.0\">{operations}</broker>")
}

/// The text of the first element of that name.
pub fn element<'a>(document: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = document.split_once(&format!("<{name}>"))?;
    rest.split_once(&format!("</{name}>")).map(|(text, _)| text)
}

/// A user who is signed in, with a token that was not used yet.
#[derive(Clone, Debug)]
pub struct SignedIn {
    pub cookie: String,
    pub token: String,
}

/// Signs a user in, message by message.
pub fn sign_in(gateway: &Gateway, user: &str) -> SignedIn {
    let first = post(gateway, None, &message("<get-configuration/>"));
    let cookie = first.session_cookie().expect("a cookie with the first reply");
    let tunnel = "<get-tunnel-connection/>";
    let second = post(gateway, Some(&cookie), &password_message(user, super::PASSWORD, tunnel));
    let cookie = second.session_cookie().expect("a new cookie at the sign-in");
    let token = element(second.text(), "connection-id").expect("a token").to_owned();
    SignedIn { cookie, token }
}

/// Asks for a tunnel under a token, and reads the head of the answer and what came with it.
pub fn open_tunnel(gateway: &Gateway, token: &str) -> (Stream, Answer) {
    let mut stream = tls(gateway);
    let head = format!("POST /ice/tunnel?{token} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    let answer = read_head(&mut stream);
    (stream, answer)
}

/// Sends one tunnel chunk as one HTTP chunk.
pub fn send_chunk(stream: &mut Stream, chunk: &str) {
    stream
        .write_all(format!("{:X}\r\n{chunk}\r\n", chunk.len()).as_bytes())
        .unwrap();
    stream.flush().unwrap();
}

/// The client's first chunk.
pub fn init_chunk() -> String {
    message_chunk(
        1,
        "init",
        &format!("type=S:{}|v1=I:3|v2=I:1|v3=I:4|cid=S:{}|", base64("C"), base64("77")),
    )
}

/// The client's second chunk, which repeats the token.
pub fn start_chunk(token: &str) -> String {
    let body = format!(
        "ipaddress=S:{0}|hostaddress=S:{0}|capID=S:{1}|type=S:{2}|t1=L:1|",
        base64("127.0.0.1"),
        base64(token),
        base64("C")
    );
    message_chunk(2, "start", &body)
}

fn message_chunk(id: u32, name: &str, body: &str) -> String {
    let header = format!("messageType=S:{}|", base64(name));
    format!("M;{id:X};;{:X};{header};{:X};{body};", header.len(), body.len())
}

fn base64(text: &str) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(text)
}
