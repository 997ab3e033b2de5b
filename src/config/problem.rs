//! The closed list of what can be wrong with a configuration, and the words for it.
//!
//! `Display` says what is wrong, [`Problem::remedy`] what to do; both stand after the setting's path. A problem never
//! holds a secret: whatever is read from one says only which rule it broke.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::password::{Cost, Weakness};
use super::path::{Quoted, SettingPath};
use super::report::Severity;

mod form;
mod published;
mod remedy;

pub use form::Form;
pub use published::Unpublishable;
pub(super) use remedy::choice;

/// One thing wrong with a configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Problem {
    // The file.
    /// The file cannot be read.
    #[error("cannot be read: {why}")]
    Unreadable {
        /// The operating system's words.
        why: String,
    },
    /// The file is longer than a configuration can be.
    #[error("is longer than {limit} bytes")]
    TooLong {
        /// The longest file.
        limit: usize,
    },
    /// The file is not UTF-8.
    #[error("this is no UTF-8 text")]
    NotText,
    /// The file is not TOML.
    #[error("this is no TOML: {why}")]
    Syntax {
        /// The parser's words.
        why: String,
    },
    /// A setting or table stands twice.
    #[error("this setting or table is there a second time")]
    SecondTime,

    // Shape.
    /// Nothing reads a setting of this name.
    #[error("no such setting")]
    UnknownSetting {
        /// The setting that was probably meant.
        nearest: Option<String>,
        /// All settings of this table.
        known: Vec<String>,
    },
    /// A mandatory setting or table is not there.
    #[error("is missing")]
    Missing {
        /// What to write.
        example: String,
    },
    /// The value is of another type.
    #[error("expects {expected}, not {found}")]
    WrongType {
        /// What is expected.
        expected: Kind,
        /// What is there.
        found: Kind,
        /// What to write.
        remedy: String,
    },
    /// The value is not one of a few words.
    #[error("{} is not possible here", Quoted(.value))]
    NotOneOf {
        /// What is there.
        value: String,
        /// What is possible.
        allowed: Vec<String>,
        /// The word that was probably meant.
        nearest: Option<String>,
    },
    /// A number or duration is too small or too large.
    #[error("{value} is out of range")]
    OutOfRange {
        /// What is there.
        value: String,
        /// The smallest possible value.
        min: Option<String>,
        /// The largest possible value.
        max: Option<String>,
    },
    /// A text or list is too short or too long.
    #[error("has {count} {unit}")]
    BadLength {
        /// How long it is.
        count: usize,
        /// What is counted.
        unit: &'static str,
        /// The smallest number.
        min: u64,
        /// The largest number.
        max: Option<u64>,
    },
    /// A list holds a value twice.
    #[error("{} is in the list a second time", Quoted(.value))]
    Repeated {
        /// The value.
        value: String,
    },

    // Texts with a form.
    /// A duration is a bare number.
    #[error("{number} has no unit")]
    NoUnit {
        /// The number.
        number: String,
    },
    /// A text is not a duration.
    #[error("{} is no duration", Quoted(.value))]
    BadDuration {
        /// What is there.
        value: String,
        /// The same in a possible form.
        nearest: Option<String>,
    },
    /// A text does not have the form that the setting needs.
    #[error("{} is no {form}", Quoted(.value))]
    BadForm {
        /// What is there.
        value: String,
        /// The form that is needed.
        form: Form,
    },
    /// A network has bits beyond its prefix.
    #[error("{} has bits beyond its prefix", Quoted(.value))]
    HostBits {
        /// What is there.
        value: String,
        /// The network that it is in.
        network: String,
    },
    /// An IPv4 address is written as an IPv6 one.
    #[error("{} is an IPv4 address in IPv6 form", Quoted(.value))]
    MappedAddress {
        /// What is there.
        value: String,
        /// The same as IPv4.
        plain: String,
    },
    /// A base URL has more than scheme, host and port.
    #[error("{} is more than https, a host and a port", Quoted(.value))]
    NotABase {
        /// What is there.
        value: String,
        /// The base of it.
        base: String,
    },

    // References between settings.
    /// A reference to something that is not there.
    #[error("there is no {what} {}", Quoted(.name))]
    UnknownReference {
        /// What is referred to: `certificate`, `user`.
        what: &'static str,
        /// The name that is not there.
        name: String,
        /// The name that was probably meant.
        nearest: Option<String>,
    },
    /// A desktop names a group that no user is in.
    #[error("no user is in group {}", Quoted(.name))]
    EmptyGroup {
        /// The group.
        name: String,
        /// The group that was probably meant.
        nearest: Option<String>,
    },
    /// Two listeners want one address.
    #[error("{address} is taken by {other}")]
    AddressTaken {
        /// The address.
        address: SocketAddr,
        /// The setting that took it.
        other: SettingPath,
    },
    /// Two listeners want one address, one of them by a wildcard.
    #[error("{address} overlaps {other_address} of {other}")]
    AddressOverlap {
        /// The address.
        address: SocketAddr,
        /// The other address.
        other_address: SocketAddr,
        /// The setting that has the other one.
        other: SettingPath,
    },
    /// One bound is higher than the one it lies within.
    #[error("{value} is more than {other} ({limit})")]
    Exceeds {
        /// What is there.
        value: String,
        /// The wider setting.
        other: SettingPath,
        /// Its value.
        limit: String,
    },
    /// A setting and another that makes it pointless.
    #[error("has no meaning with {other}")]
    NotWith {
        /// The other one.
        other: &'static str,
    },
    /// Two names mean one user.
    #[error("is the same user as {other}: names do not differ by case")]
    SameUser {
        /// The other one.
        other: SettingPath,
    },
    /// A certificate that no listener serves.
    #[error("no listener serves it")]
    UnusedCertificate,
    /// Nobody can sign in.
    #[error("there is no user, so nobody can sign in")]
    NoUser,
    /// A user who may use nothing.
    #[error("is entitled to no desktop")]
    NoDesktop,
    /// A desktop that nobody may use.
    #[error("nobody is entitled to it")]
    NobodyEntitled,
    /// A host redirect leads to a name that is itself redirected.
    #[error("sends users on to {}, which {other} sends on again", Quoted(.target))]
    RedirectLoop {
        /// Where it leads.
        target: String,
        /// The redirect of that name.
        other: SettingPath,
    },
    /// Every peer is a balancer.
    #[error("every address counts as a balancer, so any client can claim any address")]
    EveryoneBalances,
    /// A password hash of another cost than most.
    #[error("this password hash costs {cost}, most others {usual}: the time of a sign-in tells that the user exists")]
    UncommonCost {
        /// Its cost.
        cost: Cost,
        /// That of most.
        usual: Cost,
    },
    /// What is for the operator or the balancer would be open to every network.
    #[error("{address} is every address of this node, that on the Internet side too")]
    EveryAddress {
        /// The address.
        address: SocketAddr,
        /// What allows it.
        unless: &'static str,
    },

    // Files and secrets.
    /// A file that the configuration names cannot be read.
    #[error("{} cannot be read: {why}", Quoted(&.file.to_string_lossy()))]
    FileUnreadable {
        /// The file.
        file: PathBuf,
        /// The operating system's words.
        why: String,
    },
    /// A file that the configuration names is empty.
    #[error("{} is empty", Quoted(&.file.to_string_lossy()))]
    FileEmpty {
        /// The file.
        file: PathBuf,
    },
    /// A file with a secret can be read by every user of the system.
    #[error("{} can be read by every user of this system", Quoted(&.file.to_string_lossy()))]
    FileOpenToAll {
        /// The file.
        file: PathBuf,
    },
    /// A secret that must not stand in the configuration.
    #[error("must not stand in the configuration itself")]
    SecretInline,
    /// A secret names no source, or several.
    #[error("needs exactly one of file, env and credential")]
    SecretSource,
    /// An environment variable is not set.
    #[error("the environment variable {} is not set", Quoted(.name))]
    VariableUnset {
        /// Its name.
        name: String,
    },
    /// A credential of the service manager, but it gave none.
    #[error("the service manager has given no credentials to this process")]
    NoCredentials {
        /// The name of the credential.
        name: String,
    },
    /// A secret is empty or holds what a secret cannot.
    #[error("the secret {why}")]
    BadSecret {
        /// `is empty`, `is no UTF-8 text` …
        why: &'static str,
    },
    /// A key that can be guessed.
    #[error("the key has fewer than {min} characters")]
    ShortKey {
        /// The fewest characters.
        min: usize,
    },
    /// A password hash that cannot be used.
    #[error("{0}")]
    PasswordHash(Weakness),

    /// A file that the configuration names is longer than such a file can be.
    #[error("{} is longer than {limit} bytes", Quoted(&.file.to_string_lossy()))]
    FileTooLong {
        /// The file.
        file: PathBuf,
        /// The longest file.
        limit: u64,
    },

    // What is published for clients of the web.
    /// See there.
    #[error(transparent)]
    Published(#[from] Unpublishable),

    // Beyond what was foreseen.
    /// The checks passed something that the reader refuses: a fault of this program.
    #[error("the checks passed what the reader refuses")]
    Unforeseen,
}

/// The kinds of value that TOML has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A whole number.
    Whole,
    /// A number with a fraction.
    Fraction,
    /// True or false.
    Truth,
    /// A date or time.
    Date,
    /// A list.
    List,
    /// A table.
    Table,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "a text",
            Self::Whole => "a whole number",
            Self::Fraction => "a fraction",
            Self::Truth => "true or false",
            Self::Date => "a date or time",
            Self::List => "a list",
            Self::Table => "a table",
        })
    }
}

impl Problem {
    /// Whether a configuration is refused for it.
    pub fn severity(&self) -> Severity {
        if let Self::Published(problem) = self {
            return problem.severity();
        }
        let tolerable = matches!(
            self,
            Self::EmptyGroup { .. }
                | Self::UnusedCertificate
                | Self::NoUser
                | Self::NoDesktop
                | Self::NobodyEntitled
                | Self::EveryoneBalances
                | Self::UncommonCost { .. }
                | Self::FileOpenToAll { .. }
        );
        if tolerable { Severity::Warning } else { Severity::Error }
    }

    /// The name of the problem in reports for programs; stable.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Unreadable { .. } => "unreadable",
            Self::TooLong { .. } => "too_long",
            Self::NotText => "not_text",
            Self::Syntax { .. } => "syntax",
            Self::SecondTime => "second_time",
            Self::UnknownSetting { .. } => "unknown_setting",
            Self::Missing { .. } => "missing",
            Self::WrongType { .. } => "wrong_type",
            Self::NotOneOf { .. } => "not_one_of",
            Self::OutOfRange { .. } => "out_of_range",
            Self::BadLength { .. } => "bad_length",
            Self::Repeated { .. } => "repeated",
            Self::NoUnit { .. } => "no_unit",
            Self::BadDuration { .. } => "bad_duration",
            Self::BadForm { .. } => "bad_form",
            Self::HostBits { .. } => "host_bits",
            Self::MappedAddress { .. } => "mapped_address",
            Self::NotABase { .. } => "not_a_base",
            Self::UnknownReference { .. } => "unknown_reference",
            Self::EmptyGroup { .. } => "empty_group",
            Self::AddressTaken { .. } => "address_taken",
            Self::AddressOverlap { .. } => "address_overlap",
            Self::Exceeds { .. } => "exceeds",
            Self::NotWith { .. } => "not_with",
            Self::SameUser { .. } => "same_user",
            Self::UnusedCertificate => "unused_certificate",
            Self::NoUser => "no_user",
            Self::NoDesktop => "no_desktop",
            Self::NobodyEntitled => "nobody_entitled",
            Self::RedirectLoop { .. } => "redirect_loop",
            Self::EveryoneBalances => "everyone_balances",
            Self::UncommonCost { .. } => "uncommon_cost",
            Self::EveryAddress { .. } => "every_address",
            Self::FileUnreadable { .. } => "file_unreadable",
            Self::FileEmpty { .. } => "file_empty",
            Self::FileOpenToAll { .. } => "file_open_to_all",
            Self::FileTooLong { .. } => "file_too_long",
            Self::SecretInline => "secret_inline",
            Self::SecretSource => "secret_source",
            Self::VariableUnset { .. } => "variable_unset",
            Self::NoCredentials { .. } => "no_credentials",
            Self::BadSecret { .. } => "bad_secret",
            Self::ShortKey { .. } => "short_key",
            Self::PasswordHash(_) => "password_hash",
            Self::Published(problem) => problem.code(),
            Self::Unforeseen => "unforeseen",
        }
    }
}
