//! Operations and their answers as types, both directions.
//!
//! A request is an [`Operation`], its answer an [`Answer`]: the [`Kind`] of the operation and an [`Outcome`], of which
//! a good one has a [`Body`]. The server reads operations and writes answers, the client does the reverse.
//!
//! Reading is tolerant where the protocol is loose (fields in any order, unknown ones skipped, an absent flag is
//! false) and strict where a wrong reading would do harm: a field that the operation is about must be there
//! ([`Flaw`]). Fields are read whatever the version; they are written only for a version that is known to have them.

mod answer;
mod configuration;
mod fields;
mod kind;
mod launch;
mod list;
mod preferences;
mod request;
mod tunnel;

pub use answer::{Answer, Body, ErrorCode, Failure, Outcome};
pub use configuration::{AuthenticationStatus, Configuration, SignedIn};
pub use fields::Flaw;
pub(super) use fields::{flag_word, is_true};
pub use kind::Kind;
pub use launch::{AdditionalListener, Connection, FrameworkChannel, Launch};
pub use list::{Application, Desktop, DesktopState, FileType, Icon, LaunchItems, OfferedProtocol, RegisteredFileTypes};
pub use preferences::{Environment, Info, Preference};
pub use request::{LaunchItemsRequest, LaunchRequest, Operation, SupportedType, TunnelRequest};
pub use tunnel::{Quic, Tunnel, TunnelConnection};
