//! Step 4: headers and sizes within bounds, before anything is parsed.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_TYPE, HOST, UPGRADE};
use http::uri::Authority;
use http::{HeaderMap, HeaderName, Request, StatusCode, Version};

use crate::fault::CloseReason;
use crate::wire::{Frame, Length, Source};

pub mod guard;

/// The largest control message, in bytes.
pub const CONTROL_MAX: usize = 256 * 1024;

/// The types under which clients send control messages; what is in them is XML whichever they say (protocol sheet 1.2).
const CONTROL_TYPES: [&str; 3] = ["application/x-www-form-urlencoded", "application/xml", "text/xml"];

/// Why a request was turned away, and what the client is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejected {
    /// No `Host`, several, or one that is no authority.
    #[error("Host is missing, repeated or malformed")]
    Host,
    /// A content type other than the three of the protocol.
    #[error("content type is not XML")]
    Type,
    /// A content encoding.
    #[error("content encodings are not accepted")]
    Encoding,
    /// The body is larger than it may be.
    #[error("message is larger than {CONTROL_MAX} bytes")]
    TooLarge,
    /// The body did not arrive in time.
    #[error("message did not arrive in time")]
    Timeout,
    /// The body broke off.
    #[error("message broke off")]
    BrokeOff,
    /// A WebSocket belongs there.
    #[error("request is no WebSocket handshake")]
    NotWebSocket,
    /// A body where none may be.
    #[error("request has a body")]
    Body,
}

impl Rejected {
    /// The status that the client is answered.
    pub fn status(self) -> StatusCode {
        match self {
            Self::Host | Self::BrokeOff | Self::Body => StatusCode::BAD_REQUEST,
            Self::NotWebSocket => StatusCode::UPGRADE_REQUIRED,
            Self::Type | Self::Encoding => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
        }
    }

    /// The line that the client is answered.
    pub fn words(self) -> &'static str {
        match self {
            Self::Host => "Host is missing, repeated or malformed\n",
            Self::Type => "control messages are XML\n",
            Self::Encoding => "content encodings are not accepted\n",
            Self::TooLarge => "control messages have at most 256 KiB\n",
            Self::Timeout => "the message did not arrive in time\n",
            Self::BrokeOff => "the message broke off\n",
            Self::NotWebSocket => "a WebSocket is served here\n",
            Self::Body => "this request takes no body\n",
        }
    }

    /// Why its connection ends.
    pub fn close_reason(self) -> CloseReason {
        match self {
            Self::Host | Self::Type | Self::Encoding | Self::NotWebSocket | Self::Body => CloseReason::Malformed,
            Self::TooLarge => CloseReason::TooLarge,
            Self::Timeout => CloseReason::Timeout,
            Self::BrokeOff => CloseReason::ClientClosed,
        }
    }
}

/// The authority under which the client asked: that of an absolute target or of `:authority`, else the one `Host` (RFC
/// 9112 section 3.2).
///
/// # Errors
///
/// [`Rejected::Host`] if there is none (but `Ok(None)` for HTTP/1.0), more than one, or it is malformed.
pub fn authority<B>(request: &Request<B>) -> Result<Option<Authority>, Rejected> {
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => Some(host.to_str().ok().and_then(parse_authority).ok_or(Rejected::Host)?),
        (None, _) if request.version() < Version::HTTP_11 || request.uri().authority().is_some() => None,
        _ => return Err(Rejected::Host),
    };
    Ok(request.uri().authority().cloned().or(host))
}

/// Reads a control message whole: at most [`CONTROL_MAX`] bytes within `deadline`.
///
/// A declared length over the limit is turned away before the body is asked for, so that no `100 Continue` precedes
/// the refusal.
///
/// # Errors
///
/// [`Rejected`] says why; the rest of the body is left unread.
pub async fn control_body<B: Source>(headers: &HeaderMap, body: &mut B, deadline: Duration) -> Result<Bytes, Rejected> {
    control_headers(headers)?;
    if matches!(body.length(), Length::Exact(length) if length > CONTROL_MAX as u64) {
        return Err(Rejected::TooLarge);
    }
    let collected = async {
        let mut message = BytesMut::new();
        while let Some(frame) = body.frame().await {
            match frame.map_err(|_| Rejected::BrokeOff)? {
                Frame::Data(data) if message.len() + data.len() > CONTROL_MAX => return Err(Rejected::TooLarge),
                Frame::Data(data) => message.extend_from_slice(&data),
                Frame::Trailers(_) => {}
            }
        }
        Ok(message.freeze())
    };
    tokio::time::timeout(deadline, collected)
        .await
        .unwrap_or(Err(Rejected::Timeout))
}

/// Makes sure that a request with a body of that length is the handshake of a WebSocket (RFC 6455 section 4.2.1), in
/// whatever spelling; what its key and version are worth is for whoever answers it.
///
/// # Errors
///
/// [`Rejected::NotWebSocket`], [`Rejected::Body`].
pub fn websocket(request: &Request<()>, body: Length) -> Result<(), Rejected> {
    let headers = request.headers();
    let asks = lists(headers, &UPGRADE, "websocket") && lists(headers, &CONNECTION, "upgrade");
    if request.version() != Version::HTTP_11 || !asks {
        return Err(Rejected::NotWebSocket);
    }
    if body != Length::NONE {
        return Err(Rejected::Body);
    }
    Ok(())
}

/// Whether one of the fields of that name lists `wanted`.
fn lists(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let fields = headers.get_all(name).iter().filter_map(|field| field.to_str().ok());
    fields
        .flat_map(|field| field.split(','))
        .any(|listed| listed.trim().eq_ignore_ascii_case(wanted))
}

fn control_headers(headers: &HeaderMap) -> Result<(), Rejected> {
    if headers
        .get(CONTENT_ENCODING)
        .is_some_and(|encoding| encoding != "identity")
    {
        return Err(Rejected::Encoding);
    }
    let Some(kind) = headers.get(CONTENT_TYPE) else {
        return Ok(());
    };
    let essence = kind
        .to_str()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim();
    if CONTROL_TYPES.iter().any(|known| essence.eq_ignore_ascii_case(known)) {
        Ok(())
    } else {
        Err(Rejected::Type)
    }
}

/// Reads an authority without user information, whose port, if any, is a number.
fn parse_authority(text: &str) -> Option<Authority> {
    let authority: Authority = text.parse().ok()?;
    let port = text.strip_prefix(authority.host())?;
    let port_is_sound = port.is_empty() || port.strip_prefix(':')?.parse::<u16>().is_ok();
    (port_is_sound && !authority.host().is_empty()).then_some(authority)
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll};

    use super::*;
    use crate::wire::BodyFault;

    /// A body that is there, or never comes.
    struct Sent(Length, Option<Option<Bytes>>);

    impl Source for Sent {
        fn length(&self) -> Length {
            self.0
        }

        fn poll_frame(&mut self, _: &mut Context<'_>) -> Poll<Option<Result<Frame, BodyFault>>> {
            match &mut self.1 {
                Some(data) => Poll::Ready(data.take().map(Frame::Data).map(Ok)),
                None => Poll::Pending,
            }
        }
    }

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut builder = Request::post("/broker/xml");
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(()).unwrap()
    }

    async fn read(headers: &[(&str, &str)], mut body: Sent) -> Result<Bytes, Rejected> {
        control_body(request(headers).headers(), &mut body, Duration::from_secs(1)).await
    }

    async fn outcome(headers: &[(&str, &str)]) -> Result<Bytes, Rejected> {
        read(
            headers,
            Sent(Length::Unknown, Some(Some(Bytes::from_static(b"<broker/>")))),
        )
        .await
    }

    #[tokio::test]
    async fn the_types_that_clients_really_send_are_accepted() {
        for kind in [
            "application/x-www-form-urlencoded; charset=UTF-8",
            "text/xml;charset=UTF-8",
            "Application/XML",
        ] {
            assert!(outcome(&[("content-type", kind)]).await.is_ok(), "{kind}");
        }
        assert!(outcome(&[]).await.is_ok());
        assert_eq!(
            outcome(&[("content-type", "application/json")]).await,
            Err(Rejected::Type)
        );
        assert_eq!(outcome(&[("content-encoding", "gzip")]).await, Err(Rejected::Encoding));
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_declared_or_not() {
        let declared = Sent(Length::Exact(CONTROL_MAX as u64 + 1), None);
        assert_eq!(read(&[], declared).await, Err(Rejected::TooLarge));
        let sent = |length| Sent(Length::Unknown, Some(Some(Bytes::from(vec![b' '; length]))));
        assert_eq!(read(&[], sent(CONTROL_MAX + 1)).await, Err(Rejected::TooLarge));
        assert!(read(&[], sent(CONTROL_MAX)).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_never_comes_ends_at_the_deadline() {
        assert_eq!(read(&[], Sent(Length::Unknown, None)).await, Err(Rejected::Timeout));
    }

    #[test]
    fn a_websocket_is_asked_for_in_many_spellings() {
        let asked = |fields: &[(&str, &str)]| websocket(&request(fields), Length::NONE);
        let upgrade = ("upgrade", "WebSocket");
        for good in [
            &[upgrade, ("connection", "Upgrade")][..],
            &[("upgrade", "websocket"), ("connection", "keep-alive, Upgrade")],
            &[upgrade, ("connection", "keep-alive"), ("connection", "upgrade")],
            &[("upgrade", "h2c, websocket"), ("connection", "UPGRADE")],
        ] {
            assert_eq!(asked(good), Ok(()), "{good:?}");
        }
        for bad in [
            &[][..],
            &[upgrade],
            &[upgrade, ("connection", "keep-alive")],
            &[("upgrade", "websockets"), ("connection", "Upgrade")],
        ] {
            assert_eq!(asked(bad), Err(Rejected::NotWebSocket), "{bad:?}");
        }
        let with_body = request(&[upgrade, ("connection", "Upgrade")]);
        assert_eq!(websocket(&with_body, Length::Exact(9)), Err(Rejected::Body));
        assert_eq!(websocket(&with_body, Length::Unknown), Err(Rejected::Body));
    }

    #[test]
    fn the_authority_of_the_target_wins_over_host() {
        let mut absolute = request(&[("host", "b.gw.test")]);
        *absolute.uri_mut() = "http://a.gw.test/broker/xml".parse().unwrap();
        assert_eq!(authority(&absolute).unwrap().unwrap().host(), "a.gw.test");
    }

    #[test]
    fn ipv6_literals_keep_their_brackets_and_bad_ones_are_refused() {
        for good in ["[2001:db8::1]", "[::1]:8443", "gw.test:8443", "GW.TEST."] {
            assert_eq!(authority(&request(&[("host", good)])).unwrap().unwrap().as_str(), good);
        }
        for bad in ["", "[::1", "::1:8443", "a@b", "gw.test:", "gw.test:99999", "gw test"] {
            assert_eq!(authority(&request(&[("host", bad)])), Err(Rejected::Host), "{bad:?}");
        }
        assert_eq!(
            authority(&request(&[("host", "a"), ("host", "b")])),
            Err(Rejected::Host)
        );
        assert_eq!(authority(&request(&[])), Err(Rejected::Host));
    }
}
