//! The client: a second implementation of the protocol, of the side that users sit at.
//!
//! It shares the codecs with the gateway ([`crate::control`], [`crate::tunnel::https`]) and none of the state machines.
//! What `portcullis connect` does, step by step, with a type for each:
//!
//! 1. [`Reached::dial`]: TLS is agreed, and the certificate is held to [`Trust`].
//! 2. [`Reached::sign_in`]: the gateway's screens are answered, from [`Credentials`] or by a [`Prompter`].
//! 3. [`Session::open_tunnel`]: the tunnel is opened and ready.
//! 4. [`Session::launch`]: a desktop is launched; it is reached on a local port, or with [`Tunnel::raise`].
//! 5. [`Session::keep_alive`] while it is in use; [`Session::log_out`] at the end.
//!
//! Whatever comes from a gateway is bounded before it is kept, and made fit for a terminal before it is shown.

mod choice;
mod endpoint;
mod fault;
mod http;
pub mod mark;
#[cfg(test)]
#[allow(clippy::wildcard_enum_match_arm, reason = "a test looks at what it is about")]
pub(crate) mod model;
pub mod probe;
mod prompter;
mod quic;
mod random;
mod session;

mod tls;
mod trust;
mod tunnel;
mod words;

pub use self::choice::choose;
pub use self::endpoint::{Endpoint, InvalidEndpoint};
pub use self::fault::{Fault, FaultKind};
pub use self::http::HttpFault;
pub use self::prompter::{AnswerKind, Prompter, Question, Unanswered, Unattended, is_yes};
pub use self::quic::{Quic, QuicEnd, QuicFault};
pub use self::session::{Credentials, Launched, Preconnection, Reached, Session, Settings};
pub(crate) use self::tls::dial;
pub use self::tls::{DialCause, DialFault, TlsFacts};
pub use self::trust::{AuthorityFault, Judgement, KnownFault, KnownGateways, Trust};
pub use self::tunnel::{Channel, ChannelSender, Doors, End, Notice, RaiseFault, Tunnel, TunnelOver};
pub use self::words::{printable, printable_line};
pub use crate::types::{InvalidThumbprint, Thumbprint};

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::mpsc;

    use super::model::{Lab, settings};
    use super::*;
    use crate::types::Secret;

    /// What `portcullis demo` does. Each step is one await, so that it can be timed.
    #[tokio::test]
    async fn a_whole_journey_from_the_certificate_to_the_log_out() {
        let lab = Lab::new().await;
        let mut nobody = Unattended;
        let reached = Reached::dial(lab.endpoint(), settings(lab.thumbprint()), &mut nobody)
            .await
            .unwrap();
        assert_eq!(reached.tls().unwrap().to_string(), "TLS 1.3, X25519MLKEM768");

        let credentials = Credentials {
            user: Some("ann".into()),
            password: Some(Secret::new("plum")),
            ..Credentials::default()
        };
        let mut session = reached.sign_in(credentials, &mut nobody).await.unwrap();
        let desktop = choose(session.desktops(), Some("shell")).unwrap().clone();

        let (notices, _heard) = mpsc::channel(8);
        let tunnel = session
            .open_tunnel(Doors::Loopback, notices, &mut nobody)
            .await
            .unwrap();
        let launched = session.launch(&desktop, None).await.unwrap();
        assert_eq!(
            (launched.desktop.as_str(), launched.protocol.as_deref()),
            ("Shell", Some("SSH"))
        );

        let mut program = TcpStream::connect(("127.0.0.1", launched.port)).await.unwrap();
        program.write_all(b"SSH-2.0-test\r\n").await.unwrap();
        lab.echo(1, 14).await;
        let mut received = String::new();
        program.read_to_string(&mut received).await.unwrap();
        assert_eq!(received, "SSH-2.0-test\r\n");

        session.beat().await.unwrap();
        session.log_out().await;
        assert!(lab.is_logged_out());
        drop(tunnel);
    }

    #[tokio::test]
    async fn a_desktop_that_the_user_may_not_launch_is_told_in_the_gateways_words() {
        let lab = Lab::new().await;
        let reached = Reached::dial(lab.endpoint(), settings(lab.thumbprint()), &mut Unattended)
            .await
            .unwrap();
        let credentials = Credentials {
            user: Some("ann".into()),
            password: Some(Secret::new("plum")),
            ..Credentials::default()
        };
        let mut session = reached.sign_in(credentials, &mut Unattended).await.unwrap();
        let desktop = choose(session.desktops(), Some("Lab")).unwrap().clone();
        let (notices, _heard) = mpsc::channel(8);
        let _tunnel = session
            .open_tunnel(Doors::Held, notices, &mut Unattended)
            .await
            .unwrap();
        let fault = session.launch(&desktop, None).await.unwrap_err();
        assert_eq!(
            (fault.kind(), fault.to_string().as_str()),
            (FaultKind::NotAllowed, "not entitled")
        );
    }
}
