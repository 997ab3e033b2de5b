//! Requests.

use zeroize::Zeroizing;

use super::{ROOT, Reply, Version};
use crate::control::encoding;
use crate::control::operation::{ErrorCode, Failure, Operation};
use crate::control::xml::{self, Element, Limits, Node};

/// A request: operations to be executed in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The version that the client speaks.
    pub version: Version,
    /// The operations in document order, no two of one name.
    pub operations: Vec<Operation>,
}

impl Request {
    /// The most operations in one envelope. Known clients send up to three.
    pub const MAX_OPERATIONS: usize = 16;

    /// Reads the body of a request.
    ///
    /// Copies of the text made on the way are wiped; the body itself is the caller's.
    ///
    /// # Errors
    ///
    /// See [`Refused`]; its [`reply`](Refused::reply) is what the client is told.
    pub fn read(body: &[u8], limits: &Limits) -> Result<Self, Refused> {
        let root = read_root(body, limits)?;
        let version = root.attribute("version").and_then(|text| text.parse::<Version>().ok());
        let version = version
            .filter(|version| version.is_supported())
            .ok_or(Refused::Version)?;
        let mut operations = Vec::new();
        let mut names: Vec<&str> = Vec::new();
        for element in root.elements() {
            if operations.len() >= Self::MAX_OPERATIONS {
                return Err(Refused::TooManyOperations);
            }
            if names.iter().any(|name| name.eq_ignore_ascii_case(&element.name)) {
                return Err(Refused::DuplicateOperation);
            }
            names.push(&element.name);
            operations.push(Operation::read(element));
        }
        if operations.is_empty() {
            Err(Refused::NoOperation)
        } else {
            Ok(Self { version, operations })
        }
    }

    /// Writes the body of a request. It is wiped when dropped.
    ///
    /// # Errors
    ///
    /// [`Unwritable`] if a text in it, such as a password, has a character that XML cannot carry. It would arrive as
    /// another one.
    pub fn write(&self) -> Result<Zeroizing<String>, Unwritable> {
        let mut root = Element::new(ROOT).with_attribute("version", self.version.to_string());
        for operation in &self.operations {
            root.push(operation.write(self.version));
        }
        check_texts(&root)?;
        Ok(Zeroizing::new(xml::write(&root)))
    }
}

/// Octets to tree, for both directions.
pub(super) fn read_root(body: &[u8], limits: &Limits) -> Result<Element, Refused> {
    if body.len() > limits.bytes {
        return Err(Refused::TooLarge { limit: limits.bytes });
    }
    let text = Zeroizing::new(encoding::decode(body)?);
    let root = xml::parse(&text, limits)?;
    if root.is(ROOT) {
        Ok(root)
    } else {
        Err(Refused::NotBroker)
    }
}

fn check_texts(root: &Element) -> Result<(), Unwritable> {
    let mut pending = vec![root];
    while let Some(element) = pending.pop() {
        let is_text = |node: &Node| match node {
            Node::Text(text) => xml::is_text(text),
            Node::Element(_) => true,
        };
        let values_fit = element
            .attributes
            .iter()
            .all(|attribute| xml::is_text(&attribute.value));
        if !values_fit || !element.children.iter().all(is_text) {
            return Err(Unwritable {
                element: element.name.clone(),
            });
        }
        pending.extend(element.elements());
    }
    Ok(())
}

/// A request with a text that XML cannot carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a {element} has a character that cannot be sent, such as a control character")]
pub struct Unwritable {
    /// The element that holds it.
    pub element: String,
}

/// Why a whole request was refused. Nothing of it is executed.
///
/// It repeats nothing of the request but the name of an encoding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The body is longer than it may be.
    #[error("the body is larger than {limit} octets")]
    TooLarge {
        /// The most octets.
        limit: usize,
    },
    /// The body is not text.
    #[error("{0}")]
    Encoding(#[from] encoding::Error),
    /// The text is not the XML that is accepted.
    #[error("{0}")]
    Xml(#[from] xml::Error),
    /// The root is another element.
    #[error("the root element is not broker")]
    NotBroker,
    /// The version is absent, malformed, or not spoken here.
    #[error(
        "the version is absent, malformed or not one from {} to {}",
        Version::OLDEST,
        Version::NEWEST
    )]
    Version,
    /// There is nothing to do.
    #[error("the request has no operation")]
    NoOperation,
    /// There is too much to do.
    #[error("the request has more than {} operations", Request::MAX_OPERATIONS)]
    TooManyOperations,
    /// Two operations have one name.
    #[error("the request has two operations of one name")]
    DuplicateOperation,
}

impl Refused {
    /// What the client is told.
    pub fn failure(&self) -> Failure {
        let code = match self {
            Self::Version => ErrorCode::UnsupportedVersion,
            Self::TooLarge { .. }
            | Self::Encoding(_)
            | Self::Xml(_)
            | Self::NotBroker
            | Self::NoOperation
            | Self::TooManyOperations
            | Self::DuplicateOperation => ErrorCode::InvalidRequest,
        };
        Failure {
            code,
            message: self.to_string(),
            user_message: String::new(),
        }
    }

    /// The reply to the whole request.
    pub fn reply(&self) -> Reply {
        Reply::Failed(self.failure())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::operation::{Kind, TunnelRequest};
    use crate::control::screen::Submission;
    use crate::types::Secret;

    fn read(text: &str) -> Result<Request, Refused> {
        Request::read(text.as_bytes(), &Limits::default())
    }

    fn kinds(text: &str) -> Vec<Kind> {
        read(text).unwrap().operations.iter().map(Operation::kind).collect()
    }

    #[test]
    fn operations_are_read_in_document_order_whatever_the_case_of_their_names() {
        let text = r#"<?xml version="1.0"?>
            <BROKER Version="4.5" xmlns="urn:x">
              text that nobody reads
              <Set-Locale><LOCALE>en_US.UTF-8</LOCALE></Set-Locale>
              <get-configuration/>
            </BROKER>"#;
        let request = read(text).unwrap();
        assert_eq!(request.version, Version::V4_5);
        let locale = "en_US.UTF-8".to_owned();
        assert_eq!(
            request.operations,
            [Operation::SetLocale { locale }, Operation::GetConfiguration]
        );
    }

    #[test]
    fn the_batches_of_known_clients_are_read() {
        let text = r#"<broker version="4.5"><do-submit-authentication><screen><name>disclaimer</name><params><param>
            <name>accept</name><values><value>true</value></values></param></params></screen></do-submit-authentication>
            <get-tunnel-connection/><get-desktops/></broker>"#;
        assert_eq!(
            kinds(text),
            [Kind::SubmitAuthentication, Kind::GetTunnelConnection, Kind::GetDesktops]
        );
        let text = r#"<broker version="15.0"><get-tunnel-connection><certificate-thumbprint-algorithms>
            <algorithm>SHA-1</algorithm><algorithm>SHA-256</algorithm></certificate-thumbprint-algorithms>
            </get-tunnel-connection><get-user-global-preferences/><get-launch-items><desktops/></get-launch-items>
            </broker>"#;
        assert_eq!(
            kinds(text),
            [
                Kind::GetTunnelConnection,
                Kind::GetUserGlobalPreferences,
                Kind::GetLaunchItems
            ]
        );
    }

    #[test]
    fn a_version_that_is_not_spoken_is_unsupported() {
        for version in [
            "version='15.1'",
            "version='16.0'",
            "version='0.9'",
            "version=''",
            "version='x'",
            "",
        ] {
            let refused = read(&format!("<broker {version}><get-configuration/></broker>")).unwrap_err();
            assert_eq!(refused.failure().code, ErrorCode::UnsupportedVersion, "{version}");
        }
        assert_eq!(
            read("<broker version='12.3'><do-logout/></broker>")
                .unwrap()
                .version
                .to_string(),
            "12.3"
        );
    }

    #[test]
    fn two_operations_of_one_name_are_refused_whole() {
        let text = "<broker version='4.5'><do-logout/><get-desktops/><DO-LOGOUT/></broker>";
        assert_eq!(read(text), Err(Refused::DuplicateOperation));
        let text = "<broker version='4.5'><get-x/><get-x/></broker>";
        assert_eq!(read(text), Err(Refused::DuplicateOperation));
    }

    #[test]
    fn the_number_of_operations_has_bounds() {
        let text = |count: usize| {
            let operations: String = (0..count).map(|n| format!("<get-x{n}/>")).collect();
            format!("<broker version='4.5'>{operations}</broker>")
        };
        assert_eq!(kinds(&text(16)).len(), 16);
        assert_eq!(read(&text(17)), Err(Refused::TooManyOperations));
        assert_eq!(read(&text(0)), Err(Refused::NoOperation));
    }

    #[test]
    fn an_operation_that_lacks_what_it_is_about_fails_alone() {
        let text = "<broker version='4.5'><reset-desktop/><make-coffee/><do-logout/></broker>";
        let request = read(text).unwrap();
        assert!(matches!(
            &request.operations[0],
            Operation::Invalid {
                kind: Kind::ResetDesktop,
                ..
            }
        ));
        assert!(matches!(&request.operations[1], Operation::Unknown { name } if name == "make-coffee"));
        assert_eq!(request.operations[2], Operation::Logout);
    }

    #[test]
    fn a_body_that_is_too_large_is_refused_before_it_is_decoded() {
        let body = vec![0xff; 256 * 1024 + 1];
        assert_eq!(
            Request::read(&body, &Limits::default()),
            Err(Refused::TooLarge { limit: 256 * 1024 })
        );
    }

    #[test]
    fn a_body_that_is_not_an_envelope_gets_an_error_for_the_whole() {
        for text in [
            "",
            "hello",
            "<broker",
            "<x version='4.5'><do-logout/></x>",
            "username=ann&password=b",
            "{}",
        ] {
            let refused = read(text).unwrap_err();
            assert_eq!(refused.failure().code, ErrorCode::InvalidRequest, "{text}");
        }
    }

    #[test]
    fn a_field_is_written_only_for_a_version_that_knows_it() {
        let request = TunnelRequest {
            bypass_tunnel: true,
            multi_connection_aware: true,
            thumbprint_algorithms: vec!["SHA-256".to_owned()],
            quic: false,
        };
        let written = |version: Version| {
            let operations = vec![Operation::GetTunnelConnection(request.clone())];
            Request { version, operations }.write().unwrap().to_string()
        };
        assert!(written(Version::V4_5).ends_with(r#"<broker version="4.5"><get-tunnel-connection/></broker>"#));
        assert!(written(Version::V9_0).contains("<bypass-tunnel>true</bypass-tunnel>"));
        assert!(!written(Version::V9_0).contains("SHA-256"));
        assert!(written(Version::V15_0).contains("<algorithm>SHA-256</algorithm>"));
    }

    #[test]
    fn a_password_that_cannot_be_sent_is_an_error_and_is_not_altered() {
        let submission = Submission::SecuridNextTokencode {
            tokencode: Secret::new("a\u{1}b"),
        };
        let operations = vec![Operation::SubmitAuthentication {
            submission,
            environment: Default::default(),
        }];
        let error = Request {
            version: Version::V15_0,
            operations,
        }
        .write()
        .unwrap_err();
        assert_eq!(error.element, "value");
    }
}
