//! The control messages of the tunnel, in both directions.
//!
//! A message is a name, carried in the header of a message chunk, and fields in its body. Names that are not known and
//! fields that are not asked for are ignored, as the peers do; a field that a message cannot do without makes the
//! message a [`MessageFault`].

mod fields;

use std::fmt;

use bytes::Bytes;

use self::fields::{Fields, Writer};
use crate::types::Secret;

use super::chunk::Chunk;

/// The most octets of a port name.
pub const MAX_PORT_NAME: usize = 23;

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Client: opens the conversation.
    Init {
        /// `C` for a client.
        kind: String,
        /// The client's tunnel version, such as 3.1.4.
        version: [i32; 3],
        /// Correlates the answer.
        cid: String,
    },
    /// Server: the answer to [`Init`](Self::Init), with the same `cid`.
    PleaseInit {
        /// The `cid` of the question.
        cid: String,
    },
    /// Client: the authentication.
    Start {
        /// The client's local address.
        address: String,
        /// The client's host name.
        host: String,
        /// The connection-id, which must be that of the request target.
        cap_id: Secret,
        /// `C` for a client.
        kind: String,
        /// The client's clock, in milliseconds.
        clock: i64,
        /// The client knows half-closed channels (see [`Lower`](Self::Lower)). Not in the published protocol.
        half_close: bool,
    },
    /// Server: the client is who the connection-id says; the timers start.
    Authenticated {
        /// The client may reconnect after it lost contact.
        reconnection: bool,
        /// The connection-id.
        cap_id: Secret,
        /// Silence, in milliseconds, after which a side gives the connection up.
        lost_contact_ms: i64,
        /// How long, in milliseconds, the server waits for a reconnect.
        disconnected_ms: i64,
        /// What is left of the session, in milliseconds.
        session_ms: i64,
        /// The credential of a reconnect.
        reconnect_secret: Option<Secret>,
        /// The server half-closes channels for this client, which asked for it.
        half_close: bool,
    },
    /// Server: the tunnel can be used.
    Ready,
    /// Server: the client is to listen on a local port.
    ListenRequest {
        /// Correlates the answer.
        cid: i32,
        /// The name under which channels ask for this port.
        port_name: String,
        /// The port to listen on; -1 is any free one.
        client_port: i32,
        /// What stands behind the port, for the client's information.
        server_host: String,
        /// The port behind it.
        server_port: i32,
        /// Connections that the port takes; 1 is a port for one single use.
        max_connections: i32,
    },
    /// Client: the answer to [`ListenRequest`](Self::ListenRequest).
    ListenReply {
        /// The `cid` of the question.
        cid: i32,
        /// The local port, or the client's words for why there is none.
        port: Result<u16, String>,
    },
    /// Client: a program connected to a listening port.
    RaiseRequest {
        /// The number of the new channel.
        channel: i32,
        /// The port's name.
        port_name: String,
    },
    /// Server: the answer to [`RaiseRequest`](Self::RaiseRequest).
    RaiseReply {
        /// The channel's number.
        channel: i32,
        /// Why the channel is refused; `None` if it is open.
        problem: Option<String>,
    },
    /// Both: the channel is closed. Where half-closed channels were agreed on: its sender sends no more there; said by
    /// the client once more, it does not receive any more either.
    Lower {
        /// The channel's number.
        channel: i32,
    },
    /// Server: the client is to close a port and its channels.
    UnlistenRequest {
        /// The port's name.
        port_name: String,
    },
    /// Client: a port is closed, asked for or not.
    UnlistenReply {
        /// The port's name, if the client says it.
        port_name: Option<String>,
        /// What went wrong.
        problem: Option<String>,
    },
    /// Both: is anyone there?
    EchoRequest {
        /// The asker's clock, in milliseconds.
        now: Option<i64>,
    },
    /// Both: the answer to [`EchoRequest`](Self::EchoRequest).
    EchoReply,
    /// Server: the tunnel ends for good.
    Stop {
        /// Words for the user.
        reason: String,
    },
    /// Server: words to be shown to the user.
    SystemMessage {
        /// The words.
        text: String,
    },
    /// Server: words about a fault to be shown; the tunnel goes on.
    Error {
        /// The words.
        text: String,
    },
    /// A message of a name that has no meaning here.
    Unknown,
}

impl Message {
    /// Reads a message from the two parts of a message chunk.
    ///
    /// # Errors
    /// The header has no name, or a field that the message needs is missing or cannot be read.
    pub fn decode(header: &[u8], body: &[u8]) -> Result<Self, MessageFault> {
        let name = Fields::new("", header).string(NAME_FIELD)?;
        let name = NAMES
            .into_iter()
            .find(|known| known.eq_ignore_ascii_case(&name))
            .unwrap_or("");
        let fields = Fields::new(name, body);
        Ok(match name {
            "init" => Self::Init {
                kind: fields.optional_string("type")?.unwrap_or_default(),
                version: [
                    fields.optional_int("v1")?.unwrap_or(0),
                    fields.optional_int("v2")?.unwrap_or(0),
                    fields.optional_int("v3")?.unwrap_or(0),
                ],
                cid: fields.string("cid")?,
            },
            "please-init" => Self::PleaseInit {
                cid: fields.string("cid")?,
            },
            "start" => Self::Start {
                address: fields.optional_string("ipaddress")?.unwrap_or_default(),
                host: fields.optional_string("hostaddress")?.unwrap_or_default(),
                cap_id: Secret::new(fields.string("capID")?),
                kind: fields.optional_string("type")?.unwrap_or_default(),
                clock: fields.optional_long("t1")?.unwrap_or(0),
                half_close: fields.flag(HALF_CLOSE),
            },
            "authenticated" => Self::Authenticated {
                reconnection: fields.boolean("allowAutoReconnection")?,
                cap_id: Secret::new(fields.string("capID")?),
                lost_contact_ms: fields.long("lostContactTimeout")?,
                disconnected_ms: fields.long("disconnectedTimeout")?,
                session_ms: fields.optional_long("sessionTimeout")?.unwrap_or(0),
                reconnect_secret: fields.optional_string("reconnectSecret")?.map(Secret::new),
                half_close: fields.flag(HALF_CLOSE),
            },
            "ready" => Self::Ready,
            "listen-rq" => Self::ListenRequest {
                cid: fields.int("cid")?,
                port_name: fields.string("portName")?,
                client_port: fields.int("clientPort")?,
                server_host: fields.string("serverHost")?,
                server_port: fields.int("serverPort")?,
                max_connections: fields.int("maxConnections")?,
            },
            "listen-rp" => Self::ListenReply {
                cid: fields.int("cid")?,
                port: listen_reply(&fields)?,
            },
            "raise-rq" => Self::RaiseRequest {
                channel: fields.int("chanID")?,
                port_name: fields.string("portName")?,
            },
            "raise-rp" => Self::RaiseReply {
                channel: fields.int("chanID")?,
                problem: fields.optional_error("problem")?,
            },
            "lower" => Self::Lower {
                channel: fields.int("chanID")?,
            },
            "unlisten-rq" => Self::UnlistenRequest {
                port_name: fields.string("portName")?,
            },
            "unlisten-rp" => Self::UnlistenReply {
                port_name: fields.optional_string("portName")?,
                problem: fields.optional_error("problem")?,
            },
            "echo-rq" => Self::EchoRequest {
                now: fields.optional_long("now")?,
            },
            "echo-rp" => Self::EchoReply,
            "stop" => Self::Stop {
                reason: fields.string("reason")?,
            },
            "sysmsg" => Self::SystemMessage {
                text: fields.string("msg")?,
            },
            "error" => Self::Error {
                text: fields.string("msg")?,
            },
            _ => Self::Unknown,
        })
    }

    /// Puts the message into a chunk.
    ///
    /// Texts that do not fit into a chunk's body are cut.
    pub fn to_chunk(&self, id: u32, ack: Option<u32>) -> Chunk {
        Chunk::Message {
            id,
            ack,
            header: header(self.name()),
            body: self.body(),
        }
    }

    /// The name on the wire; empty for [`Unknown`](Self::Unknown), which is never sent.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Init { .. } => "init",
            Self::PleaseInit { .. } => "please-init",
            Self::Start { .. } => "start",
            Self::Authenticated { .. } => "authenticated",
            Self::Ready => "ready",
            Self::ListenRequest { .. } => "listen-rq",
            Self::ListenReply { .. } => "listen-rp",
            Self::RaiseRequest { .. } => "raise-rq",
            Self::RaiseReply { .. } => "raise-rp",
            Self::Lower { .. } => "lower",
            Self::UnlistenRequest { .. } => "unlisten-rq",
            Self::UnlistenReply { .. } => "unlisten-rp",
            Self::EchoRequest { .. } => "echo-rq",
            Self::EchoReply => "echo-rp",
            Self::Stop { .. } => "stop",
            Self::SystemMessage { .. } => "sysmsg",
            Self::Error { .. } => "error",
            Self::Unknown => "",
        }
    }

    fn body(&self) -> Bytes {
        let mut out = Writer::default();
        match self {
            Self::Init {
                kind,
                version: [v1, v2, v3],
                cid,
            } => {
                out.string("type", kind)
                    .int("v1", *v1)
                    .int("v2", *v2)
                    .int("v3", *v3)
                    .string("cid", cid);
            }
            Self::PleaseInit { cid } => {
                out.string("cid", cid);
            }
            Self::Start {
                address,
                host,
                cap_id,
                kind,
                clock,
                half_close,
            } => {
                out.string("ipaddress", address).string("hostaddress", host);
                out.string("capID", cap_id.expose())
                    .string("type", kind)
                    .long("t1", *clock)
                    .flag(HALF_CLOSE, *half_close);
            }
            Self::Authenticated {
                reconnection,
                cap_id,
                lost_contact_ms,
                disconnected_ms,
                session_ms,
                reconnect_secret,
                half_close,
            } => {
                out.boolean("allowAutoReconnection", *reconnection)
                    .string("capID", cap_id.expose());
                out.long("lostContactTimeout", *lost_contact_ms)
                    .long("disconnectedTimeout", *disconnected_ms);
                out.long("sessionTimeout", *session_ms);
                if let Some(secret) = reconnect_secret {
                    out.string("reconnectSecret", secret.expose());
                }
                out.flag(HALF_CLOSE, *half_close);
            }
            Self::ListenRequest {
                cid,
                port_name,
                client_port,
                server_host,
                server_port,
                max_connections,
            } => {
                out.int("cid", *cid)
                    .string("portName", port_name)
                    .int("clientPort", *client_port);
                out.string("serverHost", server_host).int("serverPort", *server_port);
                out.int("maxConnections", *max_connections);
            }
            Self::ListenReply { cid, port } => {
                out.int("cid", *cid);
                match port {
                    Ok(port) => out
                        .string("clientHost", "127.0.0.1")
                        .int("clientPort", i32::from(*port)),
                    Err(problem) => out.error("problem", problem),
                };
            }
            Self::RaiseRequest { channel, port_name } => {
                out.int("chanID", *channel).string("portName", port_name);
            }
            Self::RaiseReply { channel, problem } => {
                out.int("chanID", *channel);
                if let Some(problem) = problem {
                    out.error("problem", problem);
                }
            }
            Self::Lower { channel } => {
                out.int("chanID", *channel);
            }
            Self::UnlistenRequest { port_name } => {
                out.string("portName", port_name);
            }
            Self::UnlistenReply { port_name, problem } => {
                if let Some(port_name) = port_name {
                    out.string("portName", port_name);
                }
                if let Some(problem) = problem {
                    out.error("problem", problem);
                }
            }
            Self::EchoRequest { now } => {
                if let Some(now) = now {
                    out.long("now", *now);
                }
            }
            Self::Stop { reason } => {
                out.string("reason", reason);
            }
            Self::SystemMessage { text } | Self::Error { text } => {
                out.string("msg", text);
            }
            Self::Ready | Self::EchoReply | Self::Unknown => {}
        }
        out.finish()
    }
}

/// A message that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub struct MessageFault {
    /// The message's name; empty if it has none.
    pub message: &'static str,
    /// The field.
    pub field: &'static str,
    /// What is wrong with it.
    pub problem: FieldProblem,
}

impl fmt::Display for MessageFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} of message {:?}", self.problem, self.field, self.message)
    }
}

/// What is wrong with a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldProblem {
    /// It is not there, or is of another type.
    Missing,
    /// Its value does not belong to its type.
    Unreadable,
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "no field",
            Self::Unreadable => "unreadable field",
        })
    }
}

fn header(name: &str) -> Bytes {
    let mut out = Writer::default();
    out.string(NAME_FIELD, name);
    out.finish()
}

fn listen_reply(fields: &Fields<'_>) -> Result<Result<u16, String>, MessageFault> {
    if let Some(problem) = fields.optional_error("problem")? {
        return Ok(Err(problem));
    }
    let port = fields.int("clientPort")?;
    u16::try_from(port)
        .map(Ok)
        .map_err(|_| fields.fault("clientPort", FieldProblem::Unreadable))
}

const NAME_FIELD: &str = "messageType";
/// A mark of this program's own, which others skip like any field that they do not know.
const HALF_CLOSE: &str = "halfClose";

const NAMES: [&str; 17] = [
    "init",
    "please-init",
    "start",
    "authenticated",
    "ready",
    "listen-rq",
    "listen-rp",
    "raise-rq",
    "raise-rp",
    "lower",
    "unlisten-rq",
    "unlisten-rp",
    "echo-rq",
    "echo-rp",
    "stop",
    "sysmsg",
    "error",
];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::chunk::{Decoder, MAX_BODY};
    use super::*;

    #[test]
    fn names_are_read_in_any_case_and_unknown_ones_ignored() {
        let decode = |name| Message::decode(&header(name), b"");
        assert_eq!(decode("READY"), Ok(Message::Ready));
        assert_eq!(decode("openurl-rq"), Ok(Message::Unknown));
    }

    #[test]
    fn a_message_without_a_name_is_a_fault() {
        let fault = Message::decode(b"", b"").unwrap_err();
        assert_eq!((fault.field, fault.problem), ("messageType", FieldProblem::Missing));
    }

    #[test]
    fn a_missing_or_unreadable_field_is_named() {
        let decode = |body: &'static str| Message::decode(&header("lower"), body.as_bytes()).unwrap_err();
        assert_eq!(decode("").to_string(), "no field chanID of message \"lower\"");
        assert_eq!(
            decode("chanID=I:one|").to_string(),
            "unreadable field chanID of message \"lower\""
        );
        assert_eq!(decode("chanID=S:MQ==|").problem, FieldProblem::Missing);
    }

    #[test]
    fn credentials_are_not_printed() {
        let start = Message::Start {
            address: String::new(),
            host: String::new(),
            cap_id: Secret::new("hunter2"),
            kind: String::new(),
            clock: 0,
            half_close: false,
        };
        let chunk = start.to_chunk(2, None);
        assert!(!format!("{start:?} {chunk:?}").contains("hunter2"));
    }

    #[test]
    fn the_published_example_is_written_byte_for_byte() {
        let init = Message::Init {
            kind: "C".into(),
            version: [3, 1, 4],
            cid: "77".into(),
        };
        let expected = "M;1;;17;messageType=S:aW5pdA==|;2C;type=S:Qw==|v1=I:3|v2=I:1|v3=I:4|cid=S:Nzc=|;";
        assert_eq!(init.to_chunk(1, None).encode(), expected);
        assert_eq!(expected.len(), 0x50);

        let please = Message::PleaseInit { cid: "77".into() };
        let expected = "M;1;1;1F;messageType=S:cGxlYXNlLWluaXQ=|;B;cid=S:Nzc=|;";
        assert_eq!(please.to_chunk(1, Some(1)).encode(), expected);

        let expected = "M;3;2;17;messageType=S:cmVhZHk=|;0;;";
        assert_eq!(Message::Ready.to_chunk(3, Some(2)).encode(), expected);

        let listen = Message::ListenRequest {
            cid: 9,
            port_name: "rdp1".into(),
            client_port: -1,
            server_host: "vm7".into(),
            server_port: 3389,
            max_connections: 4,
        };
        let expected = "M;4;2;1B;messageType=S:bGlzdGVuLXJx|;63;cid=I:9|portName=S:cmRwMQ==|clientPort=I:-1|\
                        serverHost=S:dm03|serverPort=I:3389|maxConnections=I:4|;";
        assert_eq!(listen.to_chunk(4, Some(2)).encode(), expected);
        assert_eq!(expected.len(), 0x8c);

        let reply = Message::ListenReply {
            cid: 9,
            port: Ok(40001),
        };
        let expected = "M;3;4;1B;messageType=S:bGlzdGVuLXJw|;49;cid=I:9|portName=S:cmRwMQ==|\
                        clientHost=S:MTI3LjAuMC4x|clientPort=I:40001|;";
        let decoded = Decoder::new().decode(&mut Bytes::from(expected)).unwrap().unwrap();
        let Chunk::Message {
            id: 3,
            ack: Some(4),
            header,
            body,
        } = decoded
        else {
            panic!("{decoded:?}")
        };
        assert_eq!(Message::decode(&header, &body), Ok(reply));

        let raise = Message::RaiseRequest {
            channel: 1,
            port_name: "rdp1".into(),
        };
        let expected = "M;4;;1B;messageType=S:cmFpc2UtcnE=|;1F;chanID=I:1|portName=S:cmRwMQ==|;";
        assert_eq!(raise.to_chunk(4, None).encode(), expected);

        let raised = Message::RaiseReply {
            channel: 1,
            problem: None,
        };
        let expected = "M;5;4;1B;messageType=S:cmFpc2UtcnA=|;B;chanID=I:1|;";
        assert_eq!(raised.to_chunk(5, Some(4)).encode(), expected);
    }

    #[test]
    fn a_text_that_is_too_long_is_cut_and_still_read() {
        let stop = Message::Stop {
            reason: "ä".repeat(MAX_BODY),
        };
        let Chunk::Message { header, body, .. } = stop.to_chunk(1, None) else {
            panic!("no message")
        };
        assert!(body.len() <= MAX_BODY);
        let Ok(Message::Stop { reason }) = Message::decode(&header, &body) else {
            panic!("unreadable")
        };
        assert_eq!(reason, "ä".repeat(1024));
    }

    fn texts() -> impl Strategy<Value = String> {
        proptest::collection::vec(any::<char>(), 0..40).prop_map(String::from_iter)
    }

    fn secrets() -> impl Strategy<Value = Secret> {
        texts().prop_map(Secret::new)
    }

    fn messages() -> impl Strategy<Value = Message> {
        prop_oneof![
            (texts(), any::<[i32; 3]>(), texts()).prop_map(|(kind, version, cid)| Message::Init { kind, version, cid }),
            texts().prop_map(|cid| Message::PleaseInit { cid }),
            (texts(), texts(), secrets(), texts(), any::<(i64, bool)>()).prop_map(
                |(address, host, cap_id, kind, (clock, half_close))| {
                    Message::Start {
                        address,
                        host,
                        cap_id,
                        kind,
                        clock,
                        half_close,
                    }
                }
            ),
            (
                any::<[bool; 2]>(),
                secrets(),
                any::<[i64; 3]>(),
                proptest::option::of(secrets())
            )
                .prop_map(
                    |(
                        [reconnection, half_close],
                        cap_id,
                        [lost_contact_ms, disconnected_ms, session_ms],
                        reconnect_secret,
                    )| {
                        Message::Authenticated {
                            reconnection,
                            cap_id,
                            lost_contact_ms,
                            disconnected_ms,
                            session_ms,
                            reconnect_secret,
                            half_close,
                        }
                    }
                ),
            (any::<[i32; 4]>(), texts(), texts()).prop_map(
                |([cid, client_port, server_port, max_connections], port_name, server_host)| Message::ListenRequest {
                    cid,
                    port_name,
                    client_port,
                    server_host,
                    server_port,
                    max_connections,
                }
            ),
            (any::<i32>(), any::<u16>()).prop_map(|(cid, port)| Message::ListenReply { cid, port: Ok(port) }),
            (any::<i32>(), texts()).prop_map(|(cid, problem)| Message::ListenReply {
                cid,
                port: Err(problem)
            }),
            (any::<i32>(), texts()).prop_map(|(channel, port_name)| Message::RaiseRequest { channel, port_name }),
            (any::<i32>(), proptest::option::of(texts()))
                .prop_map(|(channel, problem)| Message::RaiseReply { channel, problem }),
            any::<i32>().prop_map(|channel| Message::Lower { channel }),
            texts().prop_map(|port_name| Message::UnlistenRequest { port_name }),
            (proptest::option::of(texts()), proptest::option::of(texts()))
                .prop_map(|(port_name, problem)| Message::UnlistenReply { port_name, problem }),
            any::<Option<i64>>().prop_map(|now| Message::EchoRequest { now }),
            texts().prop_map(|reason| Message::Stop { reason }),
            texts().prop_map(|text| Message::SystemMessage { text }),
            texts().prop_map(|text| Message::Error { text }),
            Just(Message::EchoReply),
            Just(Message::Ready),
        ]
    }

    proptest! {
        #[test]
        fn messages_survive_the_wire_with_unknown_fields_between(message in messages(), junk in "[a-z]{1,8}=[SIxs]:[0-9A-Za-z=]{0,9}") {
            prop_assume!(!["v", "t", "cid=", "now=", "msg=", "type="].iter().any(|known| junk.starts_with(known)));
            let Chunk::Message { header, body, .. } = message.to_chunk(1, None) else { panic!("no message") };
            let fields = body.split(|octet| *octet == b'|').map(|field| [field, junk.as_bytes()].join(&b'|'));
            let body = fields.collect::<Vec<_>>().join(&b'|');
            prop_assert_eq!(Message::decode(&header, &body), Ok(message));
        }

        #[test]
        fn arbitrary_fields_never_panic(name in 0..NAMES.len(), body in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Message::decode(&header(NAMES[name]), &body);
            let _ = Message::decode(&body, &body);
        }
    }
}
