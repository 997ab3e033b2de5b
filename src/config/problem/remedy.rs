//! What to do about each problem.

use super::Problem;
use crate::config::path::{Quoted, TomlKey};

impl Problem {
    /// What to do, in one or two sentences.
    pub fn remedy(&self) -> String {
        match self {
            Self::Unreadable { .. } => "Give the path of a file that this user can read.".to_owned(),
            Self::TooLong { .. } => "Is this the right file?".to_owned(),
            Self::NotText => "Save the file as UTF-8.".to_owned(),
            Self::Syntax { why } => syntax_remedy(why).to_owned(),
            Self::SecondTime => "Remove one of the two.".to_owned(),
            Self::UnknownSetting { nearest, known } => {
                did_you_mean(nearest.as_deref(), || format!("Possible here: {}.", known.join(", ")))
            }
            Self::Missing { example } => format!("Write {example}."),
            Self::WrongType { remedy, .. } => remedy.clone(),
            Self::NotOneOf { allowed, nearest, .. } => {
                did_you_mean(nearest.as_deref(), || format!("Write {}.", choice(allowed)))
            }
            Self::OutOfRange { min, max, .. } => range(min.as_deref(), max.as_deref()),
            Self::BadLength {
                unit,
                min,
                max: Some(max),
                ..
            } => format!("Write {min} to {max} {unit}."),
            Self::BadLength {
                unit, min, max: None, ..
            } => format!("Write at least {min} {unit}."),
            Self::Repeated { .. } => "Remove one.".to_owned(),
            Self::NoUnit { number } => format!("Write \"{number} s\"."),
            Self::BadDuration {
                nearest: Some(nearest), ..
            } => format!("Write \"{nearest}\"."),
            Self::BadDuration { nearest: None, .. } => {
                r#"Write a whole number and ms, s, min or h, such as "120 s"."#.to_owned()
            }
            Self::BadForm { form, .. } => form.remedy().to_owned(),
            Self::HostBits { network, .. } => format!("Write \"{network}\", or the address alone."),
            Self::MappedAddress { plain, .. } => format!("Write \"{plain}\"."),
            Self::NotABase { base, .. } => format!("Write \"{base}\"."),
            Self::UnknownReference { what, name, nearest } => did_you_mean(nearest.as_deref(), || {
                format!("Add that {what}, or remove {} here.", Quoted(name))
            }),
            Self::EmptyGroup { nearest, .. } => did_you_mean(nearest.as_deref(), || {
                "Put users into it, or remove it here.".to_owned()
            }),
            Self::AddressTaken { .. } => "Remove one, or use another port.".to_owned(),
            Self::AddressOverlap { .. } => "Bind single addresses, or use another port.".to_owned(),
            Self::Exceeds { .. } => "Lower this one, or raise that one.".to_owned(),
            Self::NotWith { .. } => "Remove one of the two.".to_owned(),
            Self::SameUser { .. } => "Merge the two.".to_owned(),
            Self::UnusedCertificate => "Name it in a listener's certificates, or remove it.".to_owned(),
            Self::NoUser => "Add [directory.user.NAME], or set session_gateway = false in every listener.".to_owned(),
            Self::NoDesktop => "Name the user, or one of the user's groups, in a desktop.".to_owned(),
            Self::NobodyEntitled => "Name users or groups.".to_owned(),
            Self::RedirectLoop { .. } => {
                "Name this node itself, by a name that the balancer does not have and that is not redirected."
                    .to_owned()
            }
            Self::EveryoneBalances => "Name the balancers' own addresses.".to_owned(),
            Self::UncommonCost { .. } => {
                "Give all users hashes of one cost; portcullis hash-password makes them.".to_owned()
            }
            Self::EveryAddress { unless, .. } => format!("Name management addresses, or {unless}."),
            Self::FileUnreadable { .. } => "Correct the path, or let this user read it.".to_owned(),
            Self::FileEmpty { .. } => "Write the file, or correct the path.".to_owned(),
            Self::FileOpenToAll { file } => format!("Run chmod o= {}.", Quoted(&file.to_string_lossy())),
            Self::FileTooLong { .. } => "Make it shorter, or correct the path.".to_owned(),
            Self::SecretInline => r#"Put it into a file and write { file = "/path" }."#.to_owned(),
            Self::SecretSource => {
                r#"Write { file = "/path" }, { env = "NAME" } or { credential = "name" }."#.to_owned()
            }
            Self::VariableUnset { .. } => "Set it before the program starts.".to_owned(),
            Self::NoCredentials { name } => format!("Add LoadCredential={name}:/path to the unit."),
            Self::BadSecret { .. } => "Write the secret again.".to_owned(),
            Self::ShortKey { .. } => "Make one with: openssl rand -hex 32.".to_owned(),
            Self::PasswordHash(_) => "Make one with: portcullis hash-password.".to_owned(),
            Self::Published(problem) => problem.remedy(),
            Self::Unforeseen => "Please report it with this line.".to_owned(),
        }
    }
}

/// What to do about the parser's words.
fn syntax_remedy(why: &str) -> &'static str {
    let says = |words: &[&str]| words.iter().any(|word| why.contains(word));
    if says(&["multi-line"]) {
        "Close it with three quotes where it ends."
    } else if says(&[
        "must be quoted",
        "float",
        "boolean",
        "integer",
        "mantissa",
        "date",
        "time",
    ]) {
        "Put texts in quotes, write numbers as digits alone."
    } else if says(&["basic string", "literal string"]) {
        "Close the quotes on this line."
    } else if says(&["no value"]) {
        "Write a name, an equals sign and a value."
    } else if says(&["unclosed"]) {
        "Close the bracket."
    } else if says(&["comma"]) {
        "Close the list before this line, or put a comma between its elements."
    } else {
        "Correct this line."
    }
}

pub(super) fn did_you_mean(nearest: Option<&str>, otherwise: impl FnOnce() -> String) -> String {
    match nearest {
        Some(nearest) => format!("Did you mean {}?", TomlKey(nearest)),
        None => otherwise(),
    }
}

/// `"a", "b" or "c"`
pub(in crate::config) fn choice(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("\"{word}\"")).collect();
    match quoted.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, before)) => format!("{} or {last}", before.join(", ")),
        None => String::new(),
    }
}

fn range(min: Option<&str>, max: Option<&str>) -> String {
    match (min, max) {
        (Some(min), Some(max)) => format!("Write {min} to {max}."),
        (Some(min), None) => format!("Write at least {min}."),
        (None, Some(max)) => format!("Write at most {max}."),
        (None, None) => "Write another value.".to_owned(),
    }
}
