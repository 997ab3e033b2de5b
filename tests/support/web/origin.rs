//! An application behind the gateway that keeps every byte it gets and does with each request what the test says.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::{PATIENCE, patiently};

/// A request as it came.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Which connection brought it, from 0.
    pub connection: usize,
    /// The head, to the empty line.
    pub head: String,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// The body as it was framed.
    pub framed: Vec<u8>,
    /// The fields behind a chunked body.
    pub trailers: Vec<(String, String)>,
    /// Whether the body came to its end.
    pub is_whole: bool,
    /// The name in the TLS handshake.
    pub sni: Option<String>,
    /// Whether the client showed a certificate.
    pub has_certificate: bool,
    /// From which address and port it came.
    pub peer: Option<SocketAddr>,
}

impl Seen {
    pub fn method(&self) -> &str {
        self.head.split(' ').next().unwrap()
    }

    /// What stands in the request line between method and version.
    pub fn target(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    /// The values of a field, line by line.
    pub fn fields(&self, name: &str) -> Vec<&str> {
        super::fields_of(&self.head, name)
    }

    /// The value of a field that stands there once.
    pub fn field(&self, name: &str) -> &str {
        let fields = self.fields(name);
        assert_eq!(fields.len(), 1, "{name} in {}", self.head);
        fields[0]
    }

    pub fn has(&self, name: &str) -> bool {
        !self.fields(name).is_empty()
    }
}

/// The application. Dropped, it is gone.
pub struct Origin {
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    seen: Mutex<Vec<Seen>>,
    probes: Mutex<Vec<Seen>>,
    changed: Condvar,
    handler: Handler,
    on_probe: Mutex<Handler>,
    tls: Option<Arc<ServerConfig>>,
    connections: AtomicUsize,
    closed: AtomicUsize,
    streams: Mutex<Vec<TcpStream>>,
    is_stopped: AtomicBool,
}

type Handler = Arc<dyn Fn(&mut Exchange<'_>) + Send + Sync>;

impl Origin {
    /// Does that with each request. Probes are answered with 200 and do not count.
    pub fn new(handler: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self::with(SocketAddr::from(([127, 0, 0, 1], 0)), None, Arc::new(handler))
    }

    /// The same over TLS.
    pub fn tls(config: Arc<ServerConfig>, handler: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self::with(SocketAddr::from(([127, 0, 0, 1], 0)), Some(config), Arc::new(handler))
    }

    /// The same at that address.
    pub fn at(address: SocketAddr, handler: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static) -> Self {
        Self::with(address, None, Arc::new(handler))
    }

    /// Answers everything with 200 and its name.
    pub fn named(name: &'static str) -> Self {
        Self::new(move |exchange| exchange.reply(name))
    }

    /// Answers everything with 200 and what it got: the head, and behind it the body.
    pub fn mirror() -> Self {
        Self::new(|exchange| {
            let body = exchange.body();
            let seen = exchange.seen();
            let is_head = seen.method() == "HEAD";
            let whole = [seen.head.into_bytes(), body].concat();
            exchange.send(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", whole.len()));
            if !is_head {
                exchange.send(whole);
            }
        })
    }

    /// Answers everything with these bytes.
    pub fn saying(answer: &'static str) -> Self {
        Self::new(move |exchange| {
            exchange.body();
            exchange.send(answer);
        })
    }

    fn with(address: SocketAddr, tls: Option<Arc<ServerConfig>>, handler: Handler) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            seen: Mutex::default(),
            probes: Mutex::default(),
            changed: Condvar::new(),
            handler,
            on_probe: Mutex::new(Arc::new(|exchange| exchange.reply("well"))),
            tls,
            connections: AtomicUsize::new(0),
            closed: AtomicUsize::new(0),
            streams: Mutex::default(),
            is_stopped: AtomicBool::new(false),
        });
        let accepting = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if accepting.is_stopped.load(Ordering::SeqCst) {
                    break;
                }
                let number = accepting.connections.fetch_add(1, Ordering::SeqCst);
                accepting.streams.lock().push(stream.try_clone().unwrap());
                let shared = accepting.clone();
                std::thread::spawn(move || shared.serve(stream, number));
            }
        });
        Self { address, shared }
    }

    /// As it stands in a list of targets.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.address)
    }

    /// What probes get from now on.
    pub fn answer_probes(&self, handler: impl Fn(&mut Exchange<'_>) + Send + Sync + 'static) {
        *self.shared.on_probe.lock() = Arc::new(handler);
    }

    /// Answers probes with that status from now on.
    pub fn answer_probes_with(&self, status: u16) {
        self.answer_probes(move |exchange| {
            exchange.send(format!("HTTP/1.1 {status} Any\r\nContent-Length: 0\r\n\r\n"));
        });
    }

    /// The requests so far, without probes.
    pub fn seen(&self) -> Vec<Seen> {
        self.shared.seen.lock().clone()
    }

    /// The only request so far.
    pub fn only(&self) -> Seen {
        let seen = self.seen();
        assert_eq!(seen.len(), 1, "{seen:?}");
        seen[0].clone()
    }

    /// The last request.
    pub fn last(&self) -> Seen {
        self.seen().last().expect("a request").clone()
    }

    /// Waits for as many requests.
    pub fn wait_for(&self, count: usize) -> Vec<Seen> {
        self.shared
            .wait(&self.shared.seen, "requests", |seen| seen.len() >= count)
    }

    /// Waits until the last request is there whole, or has broken off.
    pub fn wait_until_read(&self) -> Seen {
        let known = self.shared.wait(&self.shared.seen, "a body", |seen| {
            seen.last().is_some_and(|seen| seen.is_whole)
        });
        known.last().unwrap().clone()
    }

    /// The probes so far.
    pub fn probes(&self) -> Vec<Seen> {
        self.shared.probes.lock().clone()
    }

    /// Waits for as many probes more.
    pub fn wait_for_probes(&self, more: usize) -> Vec<Seen> {
        let before = self.probes().len();
        self.shared
            .wait(&self.shared.probes, "probes", |probes| probes.len() >= before + more)
    }

    /// How many connections it has had, those of probes too.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// How many of them are closed by now.
    pub fn closed(&self) -> usize {
        self.shared.closed.load(Ordering::SeqCst)
    }

    /// Closes its port and every connection.
    pub fn stop(&self) {
        if !self.shared.is_stopped.swap(true, Ordering::SeqCst) {
            // Wakes whoever accepts.
            let _ = TcpStream::connect(self.address);
        }
        for stream in self.shared.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        patiently("the port is closed", || TcpStream::connect(self.address).is_err());
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn wait(&self, of: &Mutex<Vec<Seen>>, what: &str, is_so: impl Fn(&[Seen]) -> bool) -> Vec<Seen> {
        let deadline = portcullis::clock::now() + PATIENCE;
        let mut list = of.lock();
        while !is_so(&list) {
            let timed_out = self.changed.wait_until(&mut list, deadline).timed_out();
            assert!(!timed_out, "no {what}: {list:?}");
        }
        list.clone()
    }

    fn serve(&self, stream: TcpStream, number: usize) {
        let _ = stream.set_nodelay(true);
        let tcp = stream.try_clone().unwrap();
        let mut about = Seen {
            connection: number,
            peer: tcp.peer_addr().ok(),
            ..Seen::default()
        };
        let io: Box<dyn Io> = match &self.tls {
            None => Box::new(stream),
            Some(config) => {
                let mut stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
                while stream.conn.is_handshaking() {
                    if stream.conn.complete_io(&mut stream.sock).is_err() {
                        return;
                    }
                }
                about.sni = stream.conn.server_name().map(str::to_owned);
                about.has_certificate = stream.conn.peer_certificates().is_some();
                Box::new(stream)
            }
        };
        let mut connection = Connection {
            io,
            tcp,
            ahead: Vec::new(),
        };
        while let Some(head) = connection.head() {
            let seen = Seen { head, ..about.clone() };
            // Whatever the gateway passes on says by what the client came; its own requests do not.
            let is_probe = !seen.has("x-forwarded-proto");
            let list = if is_probe { &self.probes } else { &self.seen };
            let place = {
                let mut list = list.lock();
                list.push(seen);
                list.len() - 1
            };
            self.changed.notify_all();
            let mut exchange = Exchange {
                connection: &mut connection,
                shared: self,
                list,
                place,
                is_read: false,
                is_open: true,
            };
            if is_probe {
                let on_probe = self.on_probe.lock().clone();
                on_probe(&mut exchange);
            } else {
                (self.handler)(&mut exchange);
            }
            if !exchange.is_open {
                break;
            }
            exchange.body();
        }
        // A connection that is let go without a further word, with TLS's own if there is any.
        connection.io.farewell();
        let _ = connection.tcp.shutdown(Shutdown::Both);
        self.closed.fetch_add(1, Ordering::SeqCst);
    }
}

/// A request that is being answered.
pub struct Exchange<'a> {
    connection: &'a mut Connection,
    shared: &'a Shared,
    list: &'a Mutex<Vec<Seen>>,
    place: usize,
    is_read: bool,
    is_open: bool,
}

impl Exchange<'_> {
    /// The request so far.
    pub fn seen(&self) -> Seen {
        self.list.lock()[self.place].clone()
    }

    pub fn target(&self) -> String {
        self.seen().target().to_owned()
    }

    /// The application's own address.
    pub fn address(&self) -> SocketAddr {
        self.connection.tcp.local_addr().unwrap()
    }

    /// Reads the body; again, it is the same.
    pub fn body(&mut self) -> Vec<u8> {
        if !self.is_read {
            self.is_read = true;
            let head = self.seen();
            let (list, place, shared) = (self.list, self.place, self.shared);
            let keep = |body: &[u8], framed: &[u8]| {
                let mut list = list.lock();
                list[place].body.extend_from_slice(body);
                list[place].framed.extend_from_slice(framed);
                shared.changed.notify_all();
            };
            let read = self.connection.body(&head, keep);
            let mut list = self.list.lock();
            if let Some(trailers) = read {
                list[place].trailers = trailers;
                list[place].is_whole = true;
            } else {
                self.is_open = false;
            }
            drop(list);
            self.shared.changed.notify_all();
        }
        self.seen().body
    }

    /// Sends bytes as they are.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let sent = self.connection.io.write_all(bytes.as_ref());
        if sent.and_then(|()| self.connection.io.flush()).is_err() {
            self.is_open = false;
        }
    }

    /// Reads the body and answers 200 with that text.
    pub fn reply(&mut self, text: &str) {
        self.reply_with(200, "", text);
    }

    /// Reads the body and answers with status, whole lines of fields, and text.
    pub fn reply_with(&mut self, status: u16, fields: &str, text: &str) {
        self.body();
        let is_head = self.seen().method() == "HEAD";
        self.send(format!(
            "HTTP/1.1 {status} Any\r\n{fields}Content-Length: {}\r\n\r\n",
            text.len()
        ));
        if !is_head {
            self.send(text);
        }
    }

    /// Closes the connection when the handler is done.
    pub fn close(&mut self) {
        self.is_open = false;
    }

    /// Resets the connection.
    pub fn reset(&mut self) {
        let _ = socket2::SockRef::from(&self.connection.tcp).set_linger(Some(Duration::ZERO));
        self.shared.streams.lock().clear();
        self.is_open = false;
    }

    /// Keeps nothing of this request, when it has been answered: for tests that would fill the memory.
    pub fn forget(&mut self) {
        self.body();
        self.list.lock()[self.place] = Seen::default();
    }

    /// Reads some bytes as they come, such as behind a 101; `None` at the end.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        self.is_read = true;
        self.connection.some()
    }

    /// Reads exactly so many bytes.
    pub fn read_exact(&mut self, length: usize) -> Option<Vec<u8>> {
        self.is_read = true;
        self.connection.exactly(length)
    }

    /// Waits until the gateway has closed, and throws away what comes before.
    pub fn wait_until_closed(&mut self) {
        while self.read().is_some() {}
        self.is_open = false;
    }

    /// No more bytes come from here.
    pub fn finish_writing(&mut self) {
        let _ = self.connection.tcp.shutdown(Shutdown::Write);
    }
}

trait Io: Read + Write + Send {
    fn farewell(&mut self) {}
}

impl Io for TcpStream {}

impl Io for StreamOwned<ServerConnection, TcpStream> {
    fn farewell(&mut self) {
        self.conn.send_close_notify();
        let _ = self.flush();
    }
}

struct Connection {
    io: Box<dyn Io>,
    tcp: TcpStream,
    /// Read, and not yet asked for.
    ahead: Vec<u8>,
}

impl Connection {
    fn fill(&mut self) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        match self.io.read(&mut buffer) {
            Ok(0) | Err(_) => false,
            Ok(length) => {
                self.ahead.extend_from_slice(&buffer[..length]);
                true
            }
        }
    }

    fn some(&mut self) -> Option<Vec<u8>> {
        if self.ahead.is_empty() && !self.fill() {
            return None;
        }
        Some(std::mem::take(&mut self.ahead))
    }

    fn exactly(&mut self, length: usize) -> Option<Vec<u8>> {
        while self.ahead.len() < length {
            if !self.fill() {
                return None;
            }
        }
        let rest = self.ahead.split_off(length);
        Some(std::mem::replace(&mut self.ahead, rest))
    }

    /// Bytes up to and with that end.
    fn until(&mut self, end: &[u8]) -> Option<Vec<u8>> {
        loop {
            if let Some(place) = self.ahead.windows(end.len()).position(|window| window == end) {
                return self.exactly(place + end.len());
            }
            if !self.fill() {
                return None;
            }
        }
    }

    fn head(&mut self) -> Option<String> {
        let head = self.until(b"\r\n\r\n")?;
        Some(String::from_utf8_lossy(&head).into_owned())
    }

    /// Reads a body, and tells of it piece by piece. Its trailers; `None` if it broke off.
    fn body(&mut self, head: &Seen, mut keep: impl FnMut(&[u8], &[u8])) -> Option<Vec<(String, String)>> {
        if let Some(length) = head.fields("content-length").first() {
            let mut left: usize = length.parse().unwrap();
            while left > 0 {
                if self.ahead.is_empty() && !self.fill() {
                    return None;
                }
                let piece = self.exactly(self.ahead.len().min(left))?;
                left -= piece.len();
                keep(&piece, &piece);
            }
        }
        if !head.has("transfer-encoding") {
            return Some(Vec::new());
        }
        loop {
            let line = self.until(b"\r\n")?;
            keep(b"", &line);
            let text = std::str::from_utf8(&line).unwrap().trim_end();
            let size = text.split(';').next().unwrap();
            let size = usize::from_str_radix(size, 16).expect("a chunk's size");
            if size == 0 {
                break;
            }
            let data = self.exactly(size + 2)?;
            keep(&data[..size], &data);
        }
        let mut trailers = Vec::new();
        loop {
            let line = self.until(b"\r\n")?;
            keep(b"", &line);
            let line = String::from_utf8(line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(':') else {
                return Some(trailers);
            };
            trailers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
    }
}
