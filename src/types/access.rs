//! The fields of an access log line.

use std::fmt;
use std::str::FromStr;

/// A field of an access log line (behaviour sheet of the application gateway, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AccessField {
    /// When the head of the request was there.
    TimeStamp,
    /// The node's name.
    InstanceId,
    /// The listener's name.
    ListenerName,
    /// The rule's name.
    RuleName,
    /// The pool's name.
    BackendPoolName,
    /// The name of how the target is spoken to.
    BackendSettingName,
    /// The client's address, as far as it can be believed.
    ClientIp,
    /// The client's port.
    ClientPort,
    /// The method.
    HttpMethod,
    /// Path and query as they came.
    OriginalRequestUriWithArgs,
    /// The path that the target was asked for.
    RequestUri,
    /// The query that the target was asked with.
    RequestQuery,
    /// `User-Agent`.
    UserAgent,
    /// The status that the client was answered.
    HttpStatus,
    /// The version of HTTP that the client spoke.
    HttpVersion,
    /// Bytes of the request's body.
    ReceivedBytes,
    /// Bytes of the answer's body.
    SentBytes,
    /// Seconds from the first byte to the last one of the answer.
    ClientResponseTime,
    /// Seconds from the request's head to the end.
    TimeTaken,
    /// What the target was told as `X-Appgw-Trace-Id`.
    TransactionId,
    /// `on` or `off`.
    SslEnabled,
    /// The cipher suite.
    SslCipher,
    /// The version of TLS.
    SslProtocol,
    /// The target's address.
    ServerRouted,
    /// The status that the target answered.
    ServerStatus,
    /// Seconds from the end of the target's request head to the head of its answer.
    ServerResponseLatency,
    /// The port from which the target was reached.
    UpstreamSourcePort,
    /// Whether the connection to the target had served other requests.
    ServerReused,
    /// Further tries that it took.
    Retries,
    /// Fields of the request that were not passed on for their names; left out where there are none.
    DroppedFields,
    /// The host that the client asked for.
    OriginalHost,
    /// The host that the target was asked for.
    Host,
    /// Why there was no answer of the target, or not the whole of it: a code of the closed list.
    ErrorInfo,
    /// The answer's `Content-Type`.
    ContentType,
}

impl AccessField {
    /// Every field, in the order in which a line has them.
    pub const ALL: [Self; 34] = [
        Self::TimeStamp,
        Self::InstanceId,
        Self::ListenerName,
        Self::RuleName,
        Self::BackendPoolName,
        Self::BackendSettingName,
        Self::ClientIp,
        Self::ClientPort,
        Self::HttpMethod,
        Self::OriginalRequestUriWithArgs,
        Self::RequestUri,
        Self::RequestQuery,
        Self::UserAgent,
        Self::HttpStatus,
        Self::HttpVersion,
        Self::ReceivedBytes,
        Self::SentBytes,
        Self::ClientResponseTime,
        Self::TimeTaken,
        Self::TransactionId,
        Self::SslEnabled,
        Self::SslCipher,
        Self::SslProtocol,
        Self::ServerRouted,
        Self::ServerStatus,
        Self::ServerResponseLatency,
        Self::UpstreamSourcePort,
        Self::ServerReused,
        Self::Retries,
        Self::DroppedFields,
        Self::OriginalHost,
        Self::Host,
        Self::ErrorInfo,
        Self::ContentType,
    ];

    /// Its name in a line and in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TimeStamp => "time_stamp",
            Self::InstanceId => "instance_id",
            Self::ListenerName => "listener_name",
            Self::RuleName => "rule_name",
            Self::BackendPoolName => "backend_pool_name",
            Self::BackendSettingName => "backend_setting_name",
            Self::ClientIp => "client_ip",
            Self::ClientPort => "client_port",
            Self::HttpMethod => "http_method",
            Self::OriginalRequestUriWithArgs => "original_request_uri_with_args",
            Self::RequestUri => "request_uri",
            Self::RequestQuery => "request_query",
            Self::UserAgent => "user_agent",
            Self::HttpStatus => "http_status",
            Self::HttpVersion => "http_version",
            Self::ReceivedBytes => "received_bytes",
            Self::SentBytes => "sent_bytes",
            Self::ClientResponseTime => "client_response_time",
            Self::TimeTaken => "time_taken",
            Self::TransactionId => "transaction_id",
            Self::SslEnabled => "ssl_enabled",
            Self::SslCipher => "ssl_cipher",
            Self::SslProtocol => "ssl_protocol",
            Self::ServerRouted => "server_routed",
            Self::ServerStatus => "server_status",
            Self::ServerResponseLatency => "server_response_latency",
            Self::UpstreamSourcePort => "upstream_source_port",
            Self::ServerReused => "server_reused",
            Self::Retries => "retries",
            Self::DroppedFields => "dropped_fields",
            Self::OriginalHost => "original_host",
            Self::Host => "host",
            Self::ErrorInfo => "error_info",
            Self::ContentType => "content_type",
        }
    }
}

impl FromStr for AccessField {
    type Err = InvalidAccessField;

    fn from_str(text: &str) -> Result<Self, InvalidAccessField> {
        let known = Self::ALL.into_iter().find(|field| field.name() == text);
        known.ok_or(InvalidAccessField)
    }
}

impl fmt::Display for AccessField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is no [`AccessField`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no field of the access log has that name")]
pub struct InvalidAccessField;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read_under_its_own_name_and_stands_at_its_place() {
        for (place, field) in AccessField::ALL.into_iter().enumerate() {
            assert_eq!(field.name().parse(), Ok(field));
            assert_eq!(field as usize, place);
        }
        assert_eq!("status".parse::<AccessField>(), Err(InvalidAccessField));
    }
}
