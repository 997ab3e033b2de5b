//! Clients of an application: what they ask, and what they are answered, over either version of HTTP.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::http2::Http2;
use crate::support::raw::{self, Stream};
use crate::support::{Gateway, PATIENCE};

/// The versions of HTTP in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Http {
    One,
    Two,
}

impl Http {
    pub const BOTH: [Self; 2] = [Self::One, Self::Two];

    /// Connects to the gateway's first listener, by TLS.
    pub fn connect(self, gateway: &Gateway) -> Browser {
        match self {
            Self::One => Browser::One(Box::new(raw::tls(gateway))),
            Self::Two => Browser::Two(Http2::connect(gateway)),
        }
    }

    /// As the access log names it.
    pub fn name(self) -> &'static str {
        match self {
            Self::One => "HTTP/1.1",
            Self::Two => "HTTP/2.0",
        }
    }
}

/// A connection of a client.
pub enum Browser {
    One(Box<Stream>),
    Two(Http2),
}

impl Browser {
    /// Asks, and reads the whole answer.
    pub fn ask(&mut self, ask: &Ask) -> Answer {
        self.try_ask(ask).unwrap_or_else(|fault| panic!("{ask:?}: {fault}"))
    }

    /// The same, if there is one.
    pub fn try_ask(&mut self, ask: &Ask) -> io::Result<Answer> {
        match self {
            Self::One(stream) => {
                stream.write_all(&ask.bytes())?;
                try_read(stream, ask.method == "HEAD")
            }
            Self::Two(connection) => connection.ask(ask),
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    pub method: String,
    pub host: String,
    /// Path and query.
    pub target: String,
    pub fields: Vec<(String, String)>,
    /// `None` is no body and no length.
    pub body: Option<Vec<u8>>,
    /// With any, the body of HTTP/1.1 is chunked.
    pub trailers: Vec<(String, String)>,
}

impl Ask {
    pub fn get(host: &str, target: &str) -> Self {
        Self::new("GET", host, target)
    }

    pub fn post(host: &str, target: &str, body: impl Into<Vec<u8>>) -> Self {
        let mut ask = Self::new("POST", host, target);
        ask.body = Some(body.into());
        ask
    }

    pub fn new(method: &str, host: &str, target: &str) -> Self {
        Self {
            method: method.to_owned(),
            host: host.to_owned(),
            target: target.to_owned(),
            fields: Vec::new(),
            body: None,
            trailers: Vec::new(),
        }
    }

    /// With a field more.
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With a field behind the body.
    pub fn with_trailer(mut self, name: &str, value: &str) -> Self {
        self.trailers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// As HTTP/1.1 has it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", self.method, self.target, self.host).into_bytes();
        for (name, value) in &self.fields {
            bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
        }
        let body = self.body.as_deref().unwrap_or_default();
        if !self.trailers.is_empty() {
            bytes.extend_from_slice(b"Transfer-Encoding: chunked\r\n\r\n");
            if !body.is_empty() {
                bytes.extend_from_slice(format!("{:x}\r\n", body.len()).as_bytes());
                bytes.extend_from_slice(body);
                bytes.extend_from_slice(b"\r\n");
            }
            bytes.extend_from_slice(b"0\r\n");
            for (name, value) in &self.trailers {
                bytes.extend_from_slice(format!("{name}: {value}\r\n").as_bytes());
            }
            bytes.extend_from_slice(b"\r\n");
            return bytes;
        }
        if self.body.is_some() {
            bytes.extend_from_slice(format!("Content-Length: {}\r\n", body.len()).as_bytes());
        }
        bytes.extend_from_slice(b"\r\n");
        bytes.extend_from_slice(body);
        bytes
    }
}

/// An answer, read whole.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// Informational answers before it: their status and their fields.
    pub informed: Vec<(u16, Vec<(String, String)>)>,
    /// Such as `HTTP/1.1`.
    pub version: String,
    pub status: u16,
    /// In their order, the names in lower case.
    pub head: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

impl Answer {
    /// The values of a field, line by line.
    pub fn fields(&self, name: &str) -> Vec<&str> {
        let of_name = self.head.iter().filter(|(known, _)| known == name);
        of_name.map(|(_, value)| value.as_str()).collect()
    }

    /// The value of a field that stands there once.
    pub fn field(&self, name: &str) -> &str {
        let fields = self.fields(name);
        assert_eq!(fields.len(), 1, "{name} in {self:?}");
        fields[0]
    }

    pub fn has(&self, name: &str) -> bool {
        !self.fields(name).is_empty()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    /// The value of a cookie that it sets, with its attributes.
    pub fn cookie(&self, name: &str) -> Option<&str> {
        let start = format!("{name}=");
        let set = self.fields("set-cookie").into_iter();
        set.into_iter().find(|line| line.starts_with(&start))
    }
}

/// Sends bytes to the gateway on a connection of their own, and reads the answer.
pub fn send(gateway: &Gateway, bytes: impl AsRef<[u8]>) -> Answer {
    let mut stream = raw::tls(gateway);
    stream.write_all(bytes.as_ref()).unwrap();
    read(&mut stream)
}

/// Connects without TLS.
pub fn plain(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// Reads one answer of HTTP/1.1.
pub fn read(stream: &mut impl Read) -> Answer {
    try_read(stream, false).unwrap_or_else(|fault| panic!("no answer: {fault}"))
}

/// The same for the answer to `HEAD`.
pub fn read_head(stream: &mut impl Read) -> Answer {
    try_read(stream, true).unwrap_or_else(|fault| panic!("no answer: {fault}"))
}

/// Reads one answer, whatever it is delimited by.
///
/// # Errors
/// If the stream ends before the answer does.
pub fn try_read(stream: &mut impl Read, is_head: bool) -> io::Result<Answer> {
    let mut informed = Vec::new();
    loop {
        let (version, status, head) = read_fields(stream)?;
        if (100..200).contains(&status) && status != 101 {
            informed.push((status, head));
            continue;
        }
        let mut answer = Answer {
            informed,
            version,
            status,
            head,
            ..Answer::default()
        };
        if !is_head && !matches!(status, 101 | 204 | 304) {
            read_body(stream, &mut answer)?;
        }
        return Ok(answer);
    }
}

/// The head of one answer, informational or not: version, status, fields.
#[allow(clippy::type_complexity, reason = "read in one place, and taken apart there")]
pub fn read_fields(stream: &mut impl Read) -> io::Result<(String, u16, Vec<(String, String)>)> {
    let line = read_line(stream)?;
    let mut parts = line.split(' ');
    let version = parts.next().unwrap().to_owned();
    let status = parts.next().and_then(|status| status.parse().ok());
    let status = status.ok_or_else(|| io::Error::other(format!("no status line: {line:?}")))?;
    Ok((version, status, read_lines(stream)?))
}

fn read_lines(stream: &mut impl Read) -> io::Result<Vec<(String, String)>> {
    let mut fields = Vec::new();
    loop {
        let line = read_line(stream)?;
        let Some((name, value)) = line.split_once(':') else {
            return Ok(fields);
        };
        fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
}

fn read_line(stream: &mut impl Read) -> io::Result<String> {
    let mut line = Vec::new();
    let mut byte = [0];
    while !line.ends_with(b"\r\n") {
        if stream.read(&mut byte)? == 0 {
            let so_far = String::from_utf8_lossy(&line).into_owned();
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, so_far));
        }
        line.push(byte[0]);
    }
    line.truncate(line.len() - 2);
    String::from_utf8(line).map_err(io::Error::other)
}

fn read_body(stream: &mut impl Read, answer: &mut Answer) -> io::Result<()> {
    if answer.has("transfer-encoding") {
        loop {
            let line = read_line(stream)?;
            let size = usize::from_str_radix(line.split(';').next().unwrap(), 16).map_err(io::Error::other)?;
            if size == 0 {
                answer.trailers = read_lines(stream)?;
                return Ok(());
            }
            let start = answer.body.len();
            answer.body.resize(start + size, 0);
            stream.read_exact(&mut answer.body[start..])?;
            read_line(stream)?;
        }
    }
    if let Some(length) = answer.fields("content-length").first() {
        answer.body = vec![0; length.parse().unwrap()];
        return stream.read_exact(&mut answer.body);
    }
    stream.read_to_end(&mut answer.body)?;
    Ok(())
}
