//! One request on a connection to a target, whichever version of HTTP is spoken there.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Request};
use parking_lot::Mutex;
use tokio_util::either::Either;

use super::shared::Shared;
use crate::upstream::connect::Io;
use crate::upstream::lanes::Lane;
use crate::wire::h1::client::{self as h1, Head};
use crate::wire::{BodyFault, Frame, Length, Unanswered, h2};

/// A connection that is about to be asked. Dropped unasked, it is closed if nobody shares it.
#[derive(Debug)]
pub struct Leased {
    pub(super) connection: Connection,
    pub(super) home: Home,
    pub(super) address: SocketAddr,
    pub(super) reused: bool,
    pub(super) since: Instant,
}

#[derive(Debug)]
pub(super) enum Connection {
    Http1(h1::Connection<Io>),
    Http2(h2::Connection, h2::Place),
}

/// Where a connection goes when its exchange is over.
#[derive(Debug)]
pub(super) struct Home {
    /// The name that the target proved.
    pub(super) name: Option<Arc<str>>,
    pub(super) place: HomePlace,
}

#[derive(Debug)]
pub(super) enum HomePlace {
    Lane(Arc<Lane<h1::Connection<Io>, Shared>>),
    Own(Own),
}

/// The connection to a target that belongs to one client's connection, since who is signed in there was proved on it
/// (NTLM, Negotiate).
#[derive(Clone, Debug, Default)]
pub struct Own(Arc<Mutex<Option<Owned>>>);

#[derive(Debug)]
pub(super) struct Owned {
    pub(super) address: SocketAddr,
    pub(super) name: Option<Arc<str>>,
    pub(super) connection: h1::Connection<Io>,
}

impl Own {
    /// The target that it leads to: the next request should go there too.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.lock().as_ref().map(|owned| owned.address)
    }

    pub(super) fn take(&self) -> Option<Owned> {
        self.0.lock().take()
    }
}

impl Leased {
    /// The target's address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether other requests went over this connection before: the target may be closing it in this moment.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// When it was there: asked for, or complete if it is a new one.
    pub fn since(&self) -> Instant {
        self.since
    }

    /// This end's address, if it is known.
    pub fn local_addr(&mut self) -> Option<SocketAddr> {
        match &mut self.connection {
            Connection::Http1(connection) => connection.io().local_addr(),
            Connection::Http2(..) => None,
        }
    }

    /// Begins an exchange: `request`, whose body is as long as `length`. Nothing is sent before the exchange is polled.
    /// `None`: the request has no `Host` that could be sent.
    pub fn ask(self, request: &Request<()>, length: Length) -> Option<Exchange> {
        let wire = match self.connection {
            Connection::Http1(connection) => Wire::Http1(Box::new(connection.ask(request, length))),
            Connection::Http2(connection, place) => Wire::Http2(Box::new(connection.ask(request, length, place)?)),
        };
        Some(Exchange {
            wire,
            home: self.home,
            address: self.address,
            reused: self.reused,
        })
    }
}

/// One exchange: see [`h1::Exchange`] for the order in which it is used.
#[derive(Debug)]
pub struct Exchange {
    wire: Wire,
    home: Home,
    address: SocketAddr,
    reused: bool,
}

#[derive(Debug)]
enum Wire {
    Http1(Box<h1::Exchange<Io>>),
    Http2(Box<h2::Exchange>),
    /// The connection serves others.
    Gone,
}

impl Exchange {
    /// Ready when the next part of the body can be taken.
    ///
    /// # Errors
    /// The target reads no more. Its answer may still come.
    pub fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Http1(exchange) => exchange.poll_ready(cx),
            Wire::Http2(exchange) => exchange.poll_ready(cx),
            Wire::Gone => Poll::Ready(Ok(())),
        }
    }

    /// Takes the next part of the body.
    pub fn data(&mut self, data: Bytes) {
        match &mut self.wire {
            Wire::Http1(exchange) => exchange.data(data),
            Wire::Http2(exchange) => exchange.data(data),
            Wire::Gone => {}
        }
    }

    /// Takes the end of the body. May follow [`data`](Self::data) at once, and is sent with it then.
    pub fn end(&mut self, trailers: Option<&HeaderMap>) {
        match &mut self.wire {
            Wire::Http1(exchange) => exchange.end(trailers),
            Wire::Http2(exchange) => exchange.end(trailers),
            Wire::Gone => {}
        }
    }

    /// Sends what was taken; ready when all of it is out.
    ///
    /// # Errors
    /// The target reads no more. Its answer may still come.
    pub fn poll_sent(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.wire {
            Wire::Http1(exchange) => exchange.poll_sent(cx),
            Wire::Http2(exchange) => exchange.poll_sent(cx),
            Wire::Gone => Poll::Ready(Ok(())),
        }
    }

    /// The next head: informational ones, and one that is not.
    ///
    /// # Errors
    /// There will be none.
    pub fn poll_head(&mut self, cx: &mut Context<'_>) -> Poll<Result<Head, Unanswered>> {
        match &mut self.wire {
            Wire::Http1(exchange) => exchange.poll_head(cx),
            Wire::Http2(exchange) => exchange.poll_head(cx),
            Wire::Gone => Poll::Ready(Err(Unanswered::Closed)),
        }
    }

    /// The next frame of the answer's body; `None` after the last.
    ///
    /// # Errors
    /// The rest will not come.
    pub fn poll_frame(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
        match &mut self.wire {
            Wire::Http1(exchange) => exchange.poll_frame(cx),
            Wire::Http2(exchange) => exchange.poll_frame(cx),
            Wire::Gone => Poll::Ready(None),
        }
    }

    /// Whether no more data will come: what is left are trailers, or nothing.
    pub fn is_over(&mut self) -> bool {
        match &mut self.wire {
            Wire::Http1(exchange) => exchange.is_over(),
            Wire::Http2(exchange) => exchange.is_over(),
            Wire::Gone => true,
        }
    }

    /// Whether some of the request may have reached the target.
    pub fn began(&self) -> bool {
        match &self.wire {
            Wire::Http1(exchange) => exchange.began(),
            Wire::Http2(exchange) => exchange.began(),
            Wire::Gone => true,
        }
    }

    /// Whether other requests went over the connection before.
    pub fn is_reused(&self) -> bool {
        self.reused
    }

    /// Gives the connection back, which then serves others if it can. To be called once all of both bodies has passed; what
    /// is not complete is closed or reset.
    pub fn release(&mut self, now: Instant) {
        let Wire::Http1(exchange) = mem::replace(&mut self.wire, Wire::Gone) else {
            return;
        };
        let keeps = exchange.keeps();
        let Some(connection) = exchange.into_connection() else {
            return;
        };
        let name = self.home.name.take();
        match &self.home.place {
            HomePlace::Lane(lane) => lane.put(name, connection, keeps, now),
            HomePlace::Own(own) => {
                let owned = Owned {
                    address: self.address,
                    name,
                    connection,
                };
                *own.0.lock() = Some(owned);
            }
        }
    }

    /// Tells that the target does not answer here: nobody else is to wait on the same connection.
    pub fn retire(&self) {
        if let Wire::Http2(exchange) = &self.wire {
            exchange.retire();
        }
    }

    /// The stream after `101`, and what the target sent behind that; `None` if there was no `101`.
    pub fn upgrade(self) -> Option<(Either<Io, h2::Stream>, Bytes)> {
        match self.wire {
            Wire::Http1(exchange) => {
                let (io, early) = exchange.upgrade();
                Some((Either::Left(io), early))
            }
            Wire::Http2(exchange) => Some((Either::Right(exchange.upgrade()?), Bytes::new())),
            Wire::Gone => None,
        }
    }
}
