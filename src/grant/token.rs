//! Tokens: what a client shows to have a secondary protocol admitted.
//!
//! Text: `<node>.<secret>.<mac>`, the last two in unpadded URL-safe base64. The secret is derived from the grant's own by
//! HMAC-SHA256 over protocol and generation, so that one token tells nothing of another. The MAC, under the fleet's
//! recognition key, covers node and secret: it opens nothing, it only lets a sister node say whose a stray token is.
//!
//! Host names know no case and end their labels after 63 characters. There the same token is two labels in base 32,
//! `t-<secret>.<mac and node>`, with any name behind them.

mod base32;

use std::borrow::Cow;
use std::fmt;
use std::time::Instant;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::{Zeroize, ZeroizeOnDrop};

use super::admission::{Scope, Secondary};
use super::random::Randomness;
use crate::types::{NodeName, Octets32, Secret};

/// A token as text, at most [`Token::MAX`] URL-safe characters. `Display` shows it, `Debug` hides it.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(Secret);

impl Token {
    /// The longest token, in characters. Anything longer is not looked at.
    pub const MAX: usize = 100;

    /// Whether a text has the form of a token, whoever made it.
    pub fn is_one(text: &str) -> bool {
        Presented::parse(text).is_some()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.expose()
    }

    /// The token as the first labels of a host name, for a client that shows it as the name of the server it asks for
    /// (SNI). At most 107 characters, so that a domain fits behind them.
    pub fn host_labels(&self) -> String {
        let mut labels = String::with_capacity(HOST_LABELS_MAX);
        if let Some(presented) = Presented::parse(self.as_str()) {
            labels.push_str(HOST_PREFIX);
            base32::encode(&presented.secret.0, &mut labels);
            labels.push('.');
            let recognised = [&presented.mac, presented.node.as_bytes()].concat();
            base32::encode(&recognised, &mut labels);
        }
        labels
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The random secret of a grant, from which its tokens are derived.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct GrantSecret([u8; SECRET]);

impl GrantSecret {
    pub(super) fn draw(random: &dyn Randomness) -> Self {
        let mut secret = Self([0; SECRET]);
        random.fill(&mut secret.0);
        secret
    }

    pub(super) fn of(octets: &Octets32) -> Self {
        Self(octets.0)
    }

    /// For another process of this node, and nobody else.
    pub(super) fn octets(&self) -> Octets32 {
        Octets32(self.0)
    }

    pub(super) fn derive(&self, secondary: Secondary, generation: u64) -> TokenSecret {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut context = hmac::Context::with_key(&key);
        context.update(b"portcullis token 1\0");
        context.update(secondary.code().as_bytes());
        context.update(b"\0");
        context.update(&generation.to_be_bytes());
        let mut secret = TokenSecret([0; SECRET]);
        secret.0.copy_from_slice(context.sign().as_ref());
        secret
    }
}

impl fmt::Debug for GrantSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantSecret(…)")
    }
}

/// The secret of one token.
#[derive(Zeroize, ZeroizeOnDrop)]
pub(super) struct TokenSecret([u8; SECRET]);

impl TokenSecret {
    pub(super) fn draw(random: &dyn Randomness) -> Self {
        let mut secret = Self([0; SECRET]);
        random.fill(&mut secret.0);
        secret
    }

    pub(super) fn digest(&self) -> Digest {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest::digest(&digest::SHA256, &self.0).as_ref());
        Digest(bytes)
    }
}

/// The only form in which a token is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Digest([u8; 32]);

impl Digest {
    pub(super) fn of(octets: &Octets32) -> Self {
        Self(octets.0)
    }

    pub(super) fn octets(self) -> Octets32 {
        Octets32(self.0)
    }
}

impl PartialEq for Digest {
    fn eq(&self, other: &Self) -> bool {
        verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for Digest {}

impl std::hash::Hash for Digest {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

/// A token of a live grant, as the grant remembers it.
#[derive(Debug)]
pub(super) struct Issued {
    pub(super) scope: Scope,
    pub(super) generation: u64,
    pub(super) digest: Digest,
    pub(super) use_by: Instant,
    pub(super) used: bool,
}

/// What a client showed, well-formed.
pub(super) struct Presented<'a> {
    node: Cow<'a, str>,
    secret: TokenSecret,
    mac: [u8; MAC],
}

impl<'a> Presented<'a> {
    pub(super) fn parse(text: &'a str) -> Option<Self> {
        if text.len() > Token::MAX {
            return None;
        }
        let (rest, mac) = text.rsplit_once('.')?;
        let (node, secret) = rest.rsplit_once('.')?;
        if node.is_empty() || node.len() > NodeName::MAX {
            return None;
        }
        let mut presented = Self {
            node: Cow::Borrowed(node),
            secret: TokenSecret([0; SECRET]),
            mac: [0; MAC],
        };
        decode_exactly(secret, &mut presented.secret.0)?;
        decode_exactly(mac, &mut presented.mac)?;
        Some(presented)
    }

    /// Reads the token out of a host name. `None`: there is none in it; `Some(None)`: one that cannot be read.
    pub(super) fn in_host(name: &str) -> Option<Option<Self>> {
        let (first, rest) = name.split_once('.').unwrap_or((name, ""));
        let secret = match first.split_at_checked(HOST_PREFIX.len()) {
            Some((prefix, secret)) if prefix.eq_ignore_ascii_case(HOST_PREFIX) => secret,
            Some(_) | None => return None,
        };
        if secret.len() != (SECRET * 8).div_ceil(5) {
            return None;
        }
        let recognised = rest.split_once('.').map_or(rest, |(label, _)| label);
        Some(Self::of_labels(secret, recognised))
    }

    fn of_labels(secret: &str, recognised: &str) -> Option<Self> {
        let (secret, SECRET) = base32::decode::<SECRET>(secret)? else {
            return None;
        };
        let secret = TokenSecret(secret);
        let (recognised, length) = base32::decode::<{ MAC + NodeName::MAX }>(recognised)?;
        let (mac, node) = recognised[..length].split_first_chunk::<MAC>()?;
        let node = std::str::from_utf8(node).ok().filter(|node| !node.is_empty())?;
        Some(Self {
            node: Cow::Owned(node.to_owned()),
            secret,
            mac: *mac,
        })
    }

    pub(super) fn digest(&self) -> Digest {
        self.secret.digest()
    }
}

/// Whose a token is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Own,
    Sister(NodeName),
    Stranger,
}

/// Writes this node's tokens, and recognises those of the fleet.
pub(super) struct Recognition {
    label: NodeName,
    key: hmac::Key,
}

impl Recognition {
    /// Without a `key` of the fleet, only tokens of this very process are recognised.
    pub(super) fn new(label: NodeName, key: Option<&Secret>, random: &dyn Randomness) -> Self {
        let key = match key {
            Some(key) => hmac::Key::new(hmac::HMAC_SHA256, key.expose().as_bytes()),
            None => {
                let own = TokenSecret::draw(random);
                hmac::Key::new(hmac::HMAC_SHA256, &own.0)
            }
        };
        Self { label, key }
    }

    pub(super) fn label(&self) -> &NodeName {
        &self.label
    }

    pub(super) fn write(&self, secret: &TokenSecret) -> Token {
        let mut text = String::with_capacity(Token::MAX);
        text.push_str(self.label.as_str());
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(secret.0, &mut text);
        text.push('.');
        URL_SAFE_NO_PAD.encode_string(self.mac(self.label.as_str(), secret), &mut text);
        Token(Secret::new(text))
    }

    pub(super) fn owner(&self, presented: &Presented<'_>) -> Owner {
        let mac = self.mac(&presented.node, &presented.secret);
        if verify_slices_are_equal(&mac, &presented.mac).is_err() {
            return Owner::Stranger;
        }
        if presented.node == self.label.as_str() {
            return Owner::Own;
        }
        presented.node.parse().map_or(Owner::Stranger, Owner::Sister)
    }

    fn mac(&self, node: &str, secret: &TokenSecret) -> [u8; MAC] {
        let mut context = hmac::Context::with_key(&self.key);
        context.update(b"portcullis node 1\0");
        context.update(&secret.0);
        context.update(node.as_bytes());
        let mut mac = [0; MAC];
        mac.copy_from_slice(&context.sign().as_ref()[..MAC]);
        mac
    }
}

/// Decodes text that has to fill `bytes` exactly, in its one canonical spelling.
fn decode_exactly(text: &str, bytes: &mut [u8]) -> Option<()> {
    if text.len() != (bytes.len() * 4).div_ceil(3) {
        return None;
    }
    let written = URL_SAFE_NO_PAD.decode_slice(text, bytes).ok()?;
    (written == bytes.len()).then_some(())
}

const SECRET: usize = 32;
const MAC: usize = 8;
/// No ordinary name begins like that and has 54 characters in its first label.
const HOST_PREFIX: &str = "t-";
const HOST_LABELS_MAX: usize = 107;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::grant::SystemRandomness;

    #[test]
    fn a_token_is_short_and_safe_in_a_url() {
        let label = "x".repeat(NodeName::MAX);
        let token = node(&label, Some("fleet")).write(&secret(1));
        assert!(token.as_str().len() <= Token::MAX, "{}", token.as_str().len());
        let safe = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
        assert!(token.as_str().chars().all(safe), "{token}");
        assert_eq!(format!("{token:?}"), "Token(…)");
    }

    #[test]
    fn a_node_recognises_its_own_and_its_sisters_tokens() {
        let (one, two) = (node("gw-1", Some("fleet")), node("gw-2.eu", Some("fleet")));
        let token = two.write(&secret(1));
        assert_eq!(owner(&two, token.as_str()), Owner::Own);
        assert_eq!(owner(&one, token.as_str()), Owner::Sister("gw-2.eu".parse().unwrap()));
    }

    #[test]
    fn a_forged_label_makes_no_sister() {
        let (one, two) = (node("gw-1", Some("fleet")), node("gw-2", Some("fleet")));
        let renamed = two.write(&secret(1)).as_str().replace("gw-2", "gw-3");
        assert_eq!(owner(&one, &renamed), Owner::Stranger);
        let foreign = node("gw-2", Some("another fleet")).write(&secret(1));
        assert_eq!(owner(&one, foreign.as_str()), Owner::Stranger);
    }

    #[test]
    fn without_a_fleet_key_a_process_recognises_only_itself() {
        let (before, after) = (node("gw-1", None), node("gw-1", None));
        let token = before.write(&secret(1));
        assert_eq!(owner(&before, token.as_str()), Owner::Own);
        assert_eq!(owner(&after, token.as_str()), Owner::Stranger);
    }

    #[test]
    fn secrets_differ_by_grant_protocol_and_generation() {
        let (ann, bob) = (GrantSecret([1; SECRET]), GrantSecret([2; SECRET]));
        let all = [
            ann.derive(Secondary::Tunnel, 1),
            ann.derive(Secondary::Tunnel, 2),
            ann.derive(Secondary::Blast, 1),
            bob.derive(Secondary::Tunnel, 1),
        ];
        for (i, one) in all.iter().enumerate() {
            for other in &all[i + 1..] {
                assert_ne!(one.0, other.0);
            }
        }
        assert_eq!(ann.derive(Secondary::Tunnel, 1).0, all[0].0);
    }

    #[test]
    fn a_token_fits_in_a_host_name_of_any_case() {
        let label = "Gw-1.eu".repeat(4)[..NodeName::MAX].to_owned();
        let gw = node(&label, Some("fleet"));
        let labels = gw.write(&secret(0xa7)).host_labels();
        assert!(
            labels.len() <= HOST_LABELS_MAX && labels.split('.').all(|label| label.len() <= 63),
            "{labels}"
        );
        for name in [
            labels.clone(),
            format!("{labels}.desk.example.com"),
            labels.to_ascii_uppercase(),
        ] {
            let presented = Presented::in_host(&name).unwrap().unwrap();
            assert_eq!(gw.owner(&presented), Owner::Own);
            assert_eq!(presented.secret.0, secret(0xa7).0);
            let sister = node("gw-2", Some("fleet")).owner(&presented);
            assert_eq!(sister, Owner::Sister(label.parse().unwrap()));
        }
    }

    #[test]
    fn an_ordinary_host_name_carries_no_token() {
        for name in ["desk.example.com", "t-1.example.com", "localhost", "", "t-", "ä"] {
            assert!(Presented::in_host(name).is_none(), "{name}");
        }
        let cut = node("gw-1", None).write(&secret(1)).host_labels();
        let (first, _) = cut.split_once('.').unwrap();
        for name in [
            first.to_owned(),
            format!("{first}.desk.example.com"),
            format!("{first}."),
        ] {
            assert!(Presented::in_host(&name).is_some_and(|token| token.is_none()), "{name}");
        }
    }

    #[test]
    fn a_token_has_one_spelling() {
        let token = node("gw-1", None).write(&secret(1));
        // 32 octets leave two bits of the last secret character unused; 8 octets leave two of the last MAC character.
        let text = token.as_str();
        let (rest, mac) = text.rsplit_once('.').unwrap();
        let other = if mac.ends_with('A') {
            'B'
        } else {
            char::from(mac.as_bytes()[10] + 1)
        };
        let respelt = format!("{rest}.{}{other}", &mac[..10]);
        assert!(Presented::parse(text).is_some());
        assert!(Presented::parse(&respelt).is_none(), "{respelt}");
    }

    proptest! {
        #[test]
        fn no_text_panics_the_parser(text in ".{0,120}") {
            let _ = Presented::parse(&text);
        }

        #[test]
        fn no_host_name_panics_the_parser(name in ".{0,120}", labels in "[tT]-[a-zA-Z2-7]{50,53}\\.[a-zA-Z2-7]{0,54}") {
            let _ = Presented::in_host(&name);
            if let Some(Some(presented)) = Presented::in_host(&labels) {
                prop_assert!(presented.node.len() <= NodeName::MAX);
            }
        }

        #[test]
        fn every_token_survives_a_host_name(bytes in any::<[u8; SECRET]>(), label in "[a-zA-Z0-9][a-zA-Z0-9.-]{0,23}") {
            let gw = node(&label, Some("fleet"));
            let labels = gw.write(&TokenSecret(bytes)).host_labels();
            let presented = Presented::in_host(&labels.to_ascii_uppercase()).unwrap().unwrap();
            prop_assert_eq!(&*presented.node, label.as_str());
            prop_assert_eq!(presented.secret.0, bytes);
            prop_assert_eq!(gw.owner(&presented), Owner::Own);
        }

        #[test]
        fn no_almost_token_panics_the_parser(text in "[a-zA-Z0-9.-]{0,26}\\.[A-Za-z0-9_=-]{40,45}\\.[A-Za-z0-9_-]{9,13}") {
            if let Some(presented) = Presented::parse(&text) {
                prop_assert!(text.starts_with(&*presented.node));
                let respelt = format!(
                    "{}.{}.{}",
                    presented.node,
                    URL_SAFE_NO_PAD.encode(presented.secret.0),
                    URL_SAFE_NO_PAD.encode(presented.mac)
                );
                prop_assert_eq!(respelt, text);
            }
        }

        #[test]
        fn a_changed_token_is_a_strangers(at in 0_usize..60, to in "[A-Za-z0-9_.-]") {
            let gw = node("gw-1", Some("fleet"));
            let mut text = gw.write(&secret(7)).as_str().to_owned();
            prop_assume!(text[at..=at] != to);
            text.replace_range(at..=at, &to);
            if let Some(presented) = Presented::parse(&text) {
                prop_assert_eq!(gw.owner(&presented), Owner::Stranger);
            }
        }
    }

    fn node(label: &str, key: Option<&str>) -> Recognition {
        Recognition::new(label.parse().unwrap(), key.map(Secret::new).as_ref(), &SystemRandomness)
    }

    fn secret(byte: u8) -> TokenSecret {
        TokenSecret([byte; SECRET])
    }

    fn owner(node: &Recognition, token: &str) -> Owner {
        node.owner(&Presented::parse(token).unwrap())
    }
}
