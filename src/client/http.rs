//! The control channel's transport: one XML document posted, one received.
//!
//! State of the session is a set of cookies. They belong to the gateway, not to the connection, which is opened again
//! when it has closed. A request is sent again only if it is certain that it was not sent: an answer to a screen must
//! not count twice.

mod jar;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, COOKIE, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use zeroize::Zeroizing;

use self::jar::Jar;
use super::endpoint::Endpoint;
use super::tls::{DialFault, Dialer, TlsFacts};
use crate::clock;

/// How the client calls itself.
pub(super) const AGENT: &str = concat!("Portcullis/", env!("CARGO_PKG_VERSION"));
/// The most octets of a reply.
pub(super) const MAX_REPLY: usize = 1024 * 1024;

/// One user's way to one gateway.
#[derive(Debug)]
pub(super) struct Web {
    dialer: Dialer,
    tasks: TaskTracker,
    /// The gateway asked now: the one that was named, or the one to which it redirected.
    endpoint: Endpoint,
    jar: Jar,
    link: Option<Link>,
    tls: Option<TlsFacts>,
}

#[derive(Debug)]
struct Link {
    request: SendRequest<Full<Bytes>>,
    used: Instant,
    _connection: DropGuard,
}

/// No reply.
#[derive(Debug, thiserror::Error)]
pub enum HttpFault {
    /// The gateway was not reached.
    #[error(transparent)]
    Dial(#[from] DialFault),
    /// The connection broke before the reply was whole.
    #[error("{endpoint}: the connection broke ({problem}). Try again")]
    Broken {
        /// The gateway.
        endpoint: Endpoint,
        /// The library's words.
        problem: String,
    },
    /// No reply in time.
    #[error("{endpoint}: no reply within {} s. Try again", REPLY_DEADLINE.as_secs())]
    TimedOut {
        /// The gateway.
        endpoint: Endpoint,
    },
    /// Not a reply of the control protocol.
    #[error("{endpoint}: {}", status_words(*status))]
    Status {
        /// The gateway.
        endpoint: Endpoint,
        /// Its answer.
        status: StatusCode,
    },
    /// The reply is longer than any reply is.
    #[error("{endpoint}: the reply is larger than {MAX_REPLY} octets. Check that this is a gateway")]
    TooLarge {
        /// The gateway.
        endpoint: Endpoint,
    },
    /// A redirect that is not followed.
    #[error("{endpoint}: redirects to where the client does not go. Check the gateway's external address")]
    Redirect {
        /// The gateway.
        endpoint: Endpoint,
    },
}

impl Web {
    /// A way that is not opened yet.
    pub(super) fn new(dialer: Dialer, endpoint: Endpoint, tasks: TaskTracker) -> Self {
        Self {
            dialer,
            tasks,
            endpoint,
            jar: Jar::default(),
            link: None,
            tls: None,
        }
    }

    /// The gateway asked now.
    pub(super) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// What the last connection agreed; `None` before the first one.
    pub(super) fn tls(&self) -> Option<&TlsFacts> {
        self.tls.as_ref()
    }

    /// Opens the connection, unless it is open.
    pub(super) async fn connect(&mut self) -> Result<(), HttpFault> {
        let fresh = self
            .link
            .take()
            .filter(|link| link.request.is_ready() && clock::now() - link.used < IDLE);
        self.link = Some(match fresh {
            Some(link) => link,
            None => self.dial().await?,
        });
        Ok(())
    }

    /// Posts one document and gives the reply to it. Redirects to another gateway are followed.
    ///
    /// Not cancel-safe: the gateway may have executed it. The connection is closed then, so that no reply is mistaken.
    pub(super) async fn post(&mut self, body: &str) -> Result<Zeroizing<Vec<u8>>, HttpFault> {
        let body = Bytes::copy_from_slice(body.as_bytes());
        for _ in 0..=REDIRECTS {
            let response = timeout(REPLY_DEADLINE, self.send(&body)).await;
            let response = response.map_err(|_| HttpFault::TimedOut {
                endpoint: self.endpoint.clone(),
            })??;
            match response {
                Received::Reply(reply) => return Ok(reply),
                Received::Redirect(target) => self.turn_to(&target)?,
            }
        }
        Err(HttpFault::Redirect {
            endpoint: self.endpoint.clone(),
        })
    }

    /// Asks the gateway's health check: 200 in service, 503 out of it.
    ///
    /// Not cancel-safe: the connection is closed then.
    pub(super) async fn health(&mut self) -> Result<StatusCode, HttpFault> {
        self.connect().await?;
        let endpoint = self.endpoint.clone();
        let Some(mut link) = self.link.take() else {
            return Err(HttpFault::TimedOut { endpoint });
        };
        let mut request = self.request(&Bytes::new());
        *request.method_mut() = http::Method::HEAD;
        *request.uri_mut() = Uri::from_static(HEALTH_PATH);
        let answered = timeout(REPLY_DEADLINE, link.request.send_request(request)).await;
        let response = answered
            .map_err(|_| HttpFault::TimedOut { endpoint })?
            .map_err(|error| self.broken(&error))?;
        link.used = clock::now();
        self.link = Some(link);
        Ok(response.status())
    }

    async fn send(&mut self, body: &Bytes) -> Result<Received, HttpFault> {
        let mut resends = 0;
        loop {
            self.connect().await?;
            // Taken out, so that a cancelled request leaves no half-read connection behind.
            let Some(mut link) = self.link.take() else { continue };
            match link.request.try_send_request(self.request(body)).await {
                Ok(response) => {
                    let received = self.receive(response).await?;
                    link.used = clock::now();
                    self.link = Some(link);
                    return Ok(received);
                }
                Err(mut error) => {
                    // With its request given back, nothing was sent: the connection had closed while it was idle.
                    let unsent = error.take_message().is_some();
                    if !unsent || resends == RESENDS {
                        return Err(self.broken(&error.into_error()));
                    }
                    resends += 1;
                }
            }
        }
    }

    fn request(&self, body: &Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body.clone()));
        *request.method_mut() = http::Method::POST;
        *request.uri_mut() = Uri::from_static(PATH);
        let headers = request.headers_mut();
        if let Ok(host) = HeaderValue::try_from(self.endpoint.to_string()) {
            headers.insert(HOST, host);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/xml;charset=UTF-8"));
        if let Some(cookies) = self.jar.header() {
            headers.insert(COOKIE, cookies);
        }
        request
    }

    async fn receive(&mut self, response: Response<Incoming>) -> Result<Received, HttpFault> {
        let (head, body) = response.into_parts();
        self.jar.take(&head.headers);
        let reply = match Limited::new(body, MAX_REPLY).collect().await {
            Ok(collected) => Zeroizing::new(collected.to_bytes().to_vec()),
            Err(error) if error.is::<LengthLimitError>() => {
                return Err(HttpFault::TooLarge {
                    endpoint: self.endpoint.clone(),
                });
            }
            Err(error) => return Err(self.broken(&*error)),
        };
        match head.status {
            StatusCode::OK => Ok(Received::Reply(reply)),
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => self.target(&head.headers),
            status => Err(HttpFault::Status {
                endpoint: self.endpoint.clone(),
                status,
            }),
        }
    }

    /// Where a redirect leads: to the same document of another gateway, over HTTPS, or nowhere.
    fn target(&self, headers: &HeaderMap) -> Result<Received, HttpFault> {
        let location = headers
            .get(LOCATION)
            .and_then(|value| Uri::try_from(value.as_bytes()).ok());
        let endpoint = location
            .filter(|uri| uri.path() == PATH)
            .and_then(|uri| Endpoint::of_uri(&uri).ok());
        endpoint.map(Received::Redirect).ok_or_else(|| HttpFault::Redirect {
            endpoint: self.endpoint.clone(),
        })
    }

    fn turn_to(&mut self, target: &Endpoint) -> Result<(), HttpFault> {
        if *target == self.endpoint {
            return Err(HttpFault::Redirect {
                endpoint: self.endpoint.clone(),
            });
        }
        // Cookies belong to a host, whatever the port.
        if target.host() != self.endpoint.host() {
            self.jar = Jar::default();
        }
        self.link = None;
        self.endpoint = target.clone();
        Ok(())
    }

    async fn dial(&mut self) -> Result<Link, HttpFault> {
        let sibling = self.tls.as_ref().map(|tls| tls.thumbprint);
        let (io, tls) = self.dialer.dial(&self.endpoint, sibling).await?;
        self.tls = Some(tls);
        let handshake = http1::handshake(TokioIo::new(io)).await;
        let (request, connection) = handshake.map_err(|error| self.broken(&error))?;
        let stop = CancellationToken::new();
        let guard = stop.clone().drop_guard();
        self.tasks.spawn(async move {
            // An end of the connection shows at the next request.
            let _ = stop.run_until_cancelled(connection).await;
        });
        Ok(Link {
            request,
            used: clock::now(),
            _connection: guard,
        })
    }

    fn broken(&self, error: &dyn std::error::Error) -> HttpFault {
        HttpFault::Broken {
            endpoint: self.endpoint.clone(),
            problem: error.to_string(),
        }
    }
}

enum Received {
    Reply(Zeroizing<Vec<u8>>),
    Redirect(Endpoint),
}

fn status_words(status: StatusCode) -> String {
    match status {
        StatusCode::SERVICE_UNAVAILABLE => {
            "the gateway takes no new sessions at this time (status 503). Try again later, or another gateway"
                .to_owned()
        }
        StatusCode::TOO_MANY_REQUESTS => {
            "the gateway has too many requests (status 429). Wait and try again".to_owned()
        }
        StatusCode::NOT_FOUND => "no gateway for clients answers there (status 404). Check host and port".to_owned(),
        status => format!(
            "the gateway answered with status {}. Check that this is a gateway",
            status.as_u16()
        ),
    }
}

/// Where the balancer asks.
const HEALTH_PATH: &str = "/favicon.ico";
const PATH: &str = "/broker/xml";
/// Redirects that are followed for one request.
const REDIRECTS: usize = 2;
/// How often a request that was certainly not sent is sent again.
const RESENDS: u32 = 2;
/// How long one exchange may take, connecting included. A launch waits for the desktop.
const REPLY_DEADLINE: Duration = Duration::from_secs(90);
/// A connection that was idle for so long is not used again: the gateway may be closing it at this moment.
const IDLE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::header::{CONNECTION, SET_COOKIE};
    use parking_lot::Mutex;

    use super::super::model::{Frames, Gateway, Identity, serve, status};
    use super::super::trust::Trust;
    use super::*;

    fn web(identity: &Identity, endpoint: Endpoint) -> Web {
        Web::new(
            Dialer::new(Trust::thumbprint(identity.thumbprint())),
            endpoint,
            TaskTracker::new(),
        )
    }

    fn reply(text: &str) -> Response<Frames> {
        Response::new(Frames::of(text.to_owned()))
    }

    fn with(mut response: Response<Frames>, name: http::HeaderName, value: &str) -> Response<Frames> {
        response.headers_mut().append(name, value.parse().unwrap());
        response
    }

    /// A gateway that answers with the cookies and the body that came.
    async fn mirror(identity: &Identity, close: bool) -> Gateway {
        serve(identity.server_config(), move |request| async move {
            let cookies = request
                .headers()
                .get(COOKIE)
                .map(|value| value.to_str().unwrap().to_owned());
            let kind = request.headers()[CONTENT_TYPE].to_str().unwrap().to_owned();
            let body = request.into_body().collect().await.unwrap().to_bytes();
            let text = format!(
                "{kind} {} {}",
                cookies.unwrap_or_default(),
                String::from_utf8_lossy(&body)
            );
            let response = with(reply(&text), SET_COOKIE, "JSESSIONID=a; Path=/; Secure; HttpOnly");
            let response = with(response, SET_COOKIE, "b=2");
            if close {
                with(response, CONNECTION, "close")
            } else {
                response
            }
        })
        .await
    }

    async fn redirecting(identity: &Identity, location: String) -> Gateway {
        serve(identity.server_config(), move |_| {
            let response = with(status(StatusCode::TEMPORARY_REDIRECT), LOCATION, &location);
            std::future::ready(with(response, SET_COOKIE, "from=first"))
        })
        .await
    }

    async fn posted(web: &mut Web, body: &str) -> String {
        String::from_utf8(web.post(body).await.unwrap().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn cookies_come_back_also_over_another_connection() {
        let identity = Identity::new("localhost");
        for close in [false, true] {
            let gateway = mirror(&identity, close).await;
            let mut web = web(&identity, gateway.endpoint());
            assert_eq!(posted(&mut web, "one").await, "text/xml;charset=UTF-8  one");
            assert_eq!(
                posted(&mut web, "two").await,
                "text/xml;charset=UTF-8 JSESSIONID=a; b=2 two"
            );
        }
    }

    #[tokio::test]
    async fn a_connection_that_the_gateway_closed_is_replaced_and_each_request_sent_once() {
        let identity = Identity::new("localhost");
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let gateway = serve(identity.server_config(), move |_| {
            let number = counted.fetch_add(1, Ordering::SeqCst) + 1;
            std::future::ready(with(reply(&number.to_string()), CONNECTION, "close"))
        })
        .await;
        let mut web = web(&identity, gateway.endpoint());
        for number in 1..=5 {
            assert_eq!(posted(&mut web, "x").await, number.to_string());
        }
        assert_eq!(count.load(Ordering::SeqCst), 5);
    }

    #[tokio::test]
    async fn a_request_that_may_have_been_executed_is_not_sent_again() {
        let identity = Identity::new("localhost");
        let count = Arc::new(AtomicUsize::new(0));
        let counted = count.clone();
        let gateway = serve(identity.server_config(), move |_| {
            counted.fetch_add(1, Ordering::SeqCst);
            async {
                // The connection breaks before the reply is whole.
                let mut response = reply("half");
                response.headers_mut().insert(http::header::CONTENT_LENGTH, 100.into());
                response
            }
        })
        .await;
        let fault = web(&identity, gateway.endpoint()).post("x").await.unwrap_err();
        assert!(matches!(fault, HttpFault::Broken { .. }), "{fault}");
        assert_eq!(count.load(Ordering::SeqCst), 1);
    }

    #[tokio::test]
    async fn a_redirect_keeps_the_document_and_leaves_the_cookies_of_another_host_behind() {
        let identity = Identity::new("localhost");
        let second = mirror(&identity, false).await;
        let same_host = redirecting(&identity, format!("https://{}/broker/xml", second.endpoint())).await;
        let mut web_there = web(&identity, same_host.endpoint());
        assert_eq!(
            posted(&mut web_there, "doc").await,
            "text/xml;charset=UTF-8 from=first doc"
        );
        assert_eq!(*web_there.endpoint(), second.endpoint());
        let next = posted(&mut web_there, "doc").await;
        assert_eq!(
            next, "text/xml;charset=UTF-8 JSESSIONID=a; b=2; from=first doc",
            "later requests go there at once"
        );

        let other_host = redirecting(&identity, format!("https://{}/broker/xml", second.address)).await;
        let mut web = web(&identity, other_host.endpoint());
        assert_eq!(posted(&mut web, "doc").await, "text/xml;charset=UTF-8  doc");
    }

    #[tokio::test]
    async fn a_redirect_to_a_gateway_that_is_not_trusted_sends_nothing() {
        let (identity, other) = (Identity::new("localhost"), Identity::new("localhost"));
        let second = mirror(&other, false).await;
        let first = redirecting(&identity, format!("https://{}/broker/xml", second.endpoint())).await;
        let fault = web(&identity, first.endpoint()).post("doc").await.unwrap_err();
        assert!(matches!(fault, HttpFault::Dial(_)), "{fault}");
    }

    #[tokio::test]
    async fn redirects_that_lead_elsewhere_or_nowhere_are_not_followed() {
        let identity = Identity::new("localhost");
        for location in [
            "http://localhost/broker/xml",
            "https://localhost/other",
            "/broker/xml",
            "https://",
        ] {
            let gateway = redirecting(&identity, location.to_owned()).await;
            let fault = web(&identity, gateway.endpoint()).post("doc").await.unwrap_err();
            assert!(matches!(fault, HttpFault::Redirect { .. }), "{location}: {fault}");
        }
        // In a circle: each names the other.
        let address = Arc::new(Mutex::new(String::new()));
        let named = address.clone();
        let gateway = serve(identity.server_config(), move |request| {
            let host = request.headers()[HOST].to_str().unwrap().to_owned();
            let there = named.lock().clone();
            let target = if host.starts_with("localhost") {
                there
            } else {
                there.replace("127.0.0.1", "localhost")
            };
            let location = format!("https://{target}/broker/xml");
            std::future::ready(with(status(StatusCode::TEMPORARY_REDIRECT), LOCATION, &location))
        })
        .await;
        *address.lock() = gateway.address.to_string();
        let fault = web(&identity, gateway.endpoint()).post("doc").await.unwrap_err();
        assert!(matches!(fault, HttpFault::Redirect { .. }), "{fault}");
    }

    #[tokio::test]
    async fn a_reply_has_a_largest_size() {
        let identity = Identity::new("localhost");
        for (octets, fits) in [(MAX_REPLY, true), (MAX_REPLY + 1, false)] {
            let gateway = serve(
                identity.server_config(),
                move |_| async move { reply(&"x".repeat(octets)) },
            )
            .await;
            let outcome = web(&identity, gateway.endpoint()).post("x").await;
            assert_eq!(outcome.is_ok(), fits);
            assert!(fits || matches!(outcome, Err(HttpFault::TooLarge { .. })));
        }
    }

    #[tokio::test]
    async fn an_answer_without_a_document_is_explained() {
        let identity = Identity::new("localhost");
        let gateway = serve(identity.server_config(), |_| async {
            status(StatusCode::SERVICE_UNAVAILABLE)
        })
        .await;
        let fault = web(&identity, gateway.endpoint()).post("x").await.unwrap_err();
        assert!(fault.to_string().contains("takes no new sessions"), "{fault}");
    }

    #[tokio::test]
    async fn a_gateway_that_never_answers_is_given_up() {
        let identity = Identity::new("localhost");
        let gateway = serve(identity.server_config(), |_| std::future::pending()).await;
        let mut web = web(&identity, gateway.endpoint());
        web.connect().await.unwrap();
        tokio::time::pause();
        let fault = web.post("x").await.unwrap_err();
        assert!(matches!(fault, HttpFault::TimedOut { .. }), "{fault}");
        assert!(web.link.is_none(), "a late reply must not be taken for another");
    }
}
