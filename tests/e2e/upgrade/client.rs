//! A client at an address of its own, and what all kinds of them have in common.

use std::cell::Cell;
use std::io::Write as _;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use portcullis::clock;
use rustls::ClientConfig;
use tokio::runtime::Handle;

use super::book::{Kind, Load};
use super::site::{Site, address_of, user};
use super::{desktop, quic, sign_in, tunnel, web};
use crate::e2e::balancer::rig::Node;
use crate::rig;
use crate::support::PASSWORD;
use crate::support::raw::{self, Answer, Stream, element, message, password_message};

/// A client with its load.
pub(super) struct Client {
    pub(super) site: Arc<Site>,
    pub(super) load: Load,
    pub(super) tls: Arc<ClientConfig>,
    pub(super) runtime: Handle,
    /// Since when there is what it has open, or asks for.
    began: Cell<Instant>,
    /// The node at which that is.
    at: Cell<Option<Node>>,
    /// Whether it asks for something new, beside what it has open.
    asks: Cell<bool>,
}

impl Client {
    pub(super) fn new(site: &Arc<Site>, load: Load, runtime: &Handle) -> Self {
        Self {
            site: site.clone(),
            load,
            tls: Arc::new(site.trust()),
            runtime: runtime.clone(),
            began: Cell::new(clock::now()),
            at: Cell::new(None),
            asks: Cell::new(false),
        }
    }

    /// Does what its load is until all is over, or something went wrong.
    pub(super) fn run(self) {
        let _runtime = self.runtime.enter();
        match self.load.kind {
            Kind::Tunnel => self.keep(tunnel::open, tunnel::turn),
            Kind::Blast | Kind::BlastUdp => self.keep(desktop::open_blast, desktop::turn),
            Kind::Pcoip | Kind::PcoipUdp => self.keep(desktop::open_pcoip, desktop::turn),
            Kind::Quic => self.keep(quic::open_stream, quic::turn_stream),
            Kind::QuicUdp => self.keep(quic::open_datagrams, quic::turn_datagrams),
            Kind::Http1 => self.keep(web::open, web::turn),
            Kind::Http2 => self.keep(web::open_http2, web::turn_http2),
            Kind::WebSocket => self.keep(web::open_socket, web::turn_socket),
            Kind::Download => self.keep(|_, _| (), web::download),
            Kind::Upload => self.keep(|_, _| (), web::upload),
            Kind::SignIn => self.keep(|_, _| (), sign_in::turn),
        }
    }

    /// Opens something and takes turns with it. What was cut because its time was over is opened anew.
    fn keep<T>(&self, open: impl Fn(&Self, Node) -> T, turn: impl Fn(&Self, Node, &mut T)) {
        let mut was_open = false;
        while self.load.book.goes_on() {
            let opened = attempt(|| {
                let at = self.begin_anew();
                let opened = open(self, at);
                // While a node goes away, the balancer may have brought one half here and the other half there.
                (self.begin_anew() == at).then_some((at, opened))
            });
            let (at, mut opened) = match opened {
                Ok(Some(opened)) => opened,
                Ok(None) => continue,
                Err(what) if self.broke(&format!("not opened: {what}")) => {
                    std::thread::sleep(super::PACE);
                    continue;
                }
                Err(_) => return,
            };
            if !was_open {
                self.load.is_open();
                was_open = true;
            }
            let mut is_cut = false;
            while self.load.book.goes_on() && !is_cut {
                let since = clock::now();
                let outcome = attempt(|| turn(self, at, &mut opened));
                let took = clock::now() - since;
                match outcome {
                    Ok(()) => self.load.turned(took),
                    Err(what) if self.broke(&what) => is_cut = true,
                    Err(_) => return,
                }
                std::thread::sleep(super::PACE);
            }
        }
    }

    fn broke(&self, what: &str) -> bool {
        let asks = self.asks.take();
        self.load.broke(self.at.get(), self.began.get(), asks, what)
    }

    /// Asks for something new, beside what is open.
    pub(super) async fn ask<T>(&self, what: impl Future<Output = T>) -> T {
        self.asks.set(true);
        let outcome = what.await;
        self.asks.set(false);
        outcome
    }

    /// What is at stake from here on began then.
    pub(super) fn stake(&self, began: Instant) {
        self.began.set(began);
    }

    /// A node has answered.
    pub(super) fn was_at(&self, name: &str) {
        self.at.set(Node::BOTH.into_iter().find(|node| node.name() == name));
    }

    /// From here on something else is at stake: at the node to which the balancer brings it.
    pub(super) fn begin_anew(&self) -> Node {
        self.stake(clock::now());
        let mut stream = self.connect("gw.test");
        stream
            .write_all(b"GET /where HTTP/1.1\r\nHost: gw.test\r\nConnection: close\r\n\r\n")
            .unwrap();
        let answer = rig::read(&mut stream);
        assert_eq!(answer.status, 200, "{answer:?}");
        self.was_at(answer.field("x-node"));
        self.at.get().unwrap()
    }

    /// A connection through the balancer.
    pub(super) fn connect(&self, name: &str) -> Stream {
        // Some use the other port, which leads to the same node.
        let is_at_other = self.load.kind == Kind::Blast && self.load.number.is_multiple_of(2);
        let port = if is_at_other { self.site.second } else { self.site.first };
        self.site.connect(self.load.number, port, name, &self.tls)
    }

    /// An address of its own.
    pub(super) fn address(&self) -> SocketAddr {
        (address_of(self.load.number), 0).into()
    }

    /// Posts a message on a connection of its own.
    pub(super) fn post(&self, cookie: Option<&str>, message: &str) -> Answer {
        raw::post_on(&mut self.connect("localhost"), cookie, message.as_bytes())
    }

    /// The first half of a sign-in: the cookie.
    pub(super) fn begin(&self) -> String {
        let first = self.post(None, &message("<get-configuration/>"));
        let cookie = first.session_cookie().expect("a cookie with the first reply");
        let accept = "<do-submit-authentication><screen><name>disclaimer</name><params><param><name>accept</name>\
                      <values><value>true</value></values></param></params></screen></do-submit-authentication>";
        let second = self.post(Some(&cookie), &message(accept));
        let asks = second.text().contains("<name>windows-password</name>");
        assert!(asks, "{}", second.text());
        cookie
    }

    /// The other half: the cookie of the session.
    pub(super) fn finish(&self, cookie: &str) -> String {
        let answers = password_message(&user(self.load.number), PASSWORD, "<get-tunnel-connection/>");
        let is_busy = |third: &Answer| third.text().contains(BUSY);
        let third = self.unless(is_busy, || self.post(Some(cookie), &answers));
        let is_in = element(third.text(), "connection-id").is_some();
        assert!(is_in, "not signed in: {}", third.text());
        third.session_cookie().expect("a new cookie at the sign-in")
    }

    /// Asks again while too many ask at once, as every user does who reads that.
    pub(super) fn unless<T>(&self, is_busy: impl Fn(&T) -> bool, ask: impl Fn() -> T) -> T {
        for _ in 1..MOST_TRIES {
            let answer = ask();
            if !is_busy(&answer) {
                return answer;
            }
            std::thread::sleep(super::PACE);
        }
        ask()
    }

    /// Launches a desktop by a protocol: the reply.
    pub(super) fn launch(&self, cookie: &str, desktop: &str, how: &str) -> String {
        let launch = message(&format!(
            "<get-desktop-connection><desktop-id>{desktop}</desktop-id>{how}</get-desktop-connection>"
        ));
        let reply = self.post(Some(cookie), &launch);
        assert!(reply.text().contains("<result>ok</result>"), "{}", reply.text());
        reply.text().to_owned()
    }
}

/// Does something that may fail by a panic, and gives its words.
pub(super) fn attempt<T>(what: impl FnOnce() -> T) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(what)).map_err(|panic| {
        let words = panic.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| panic.downcast_ref::<&str>().copied());
        words.unwrap_or("no words").to_owned()
    })
}

/// What the sign-in answers when it has no room for another password.
pub(super) const BUSY: &str = "The gateway is busy.";
const MOST_TRIES: usize = 10;
