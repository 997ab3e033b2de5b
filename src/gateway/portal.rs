//! The page that says to people what answers here, and how it is used. It tells nothing of the node.

use std::sync::LazyLock;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::HeaderValue;
use http::uri::Authority;

const PAGE: &str = include_str!("portal.html");
const STYLE: &str = include_str!("portal.css");

/// The page for whoever asked under this name.
pub(super) fn page(authority: Option<&Authority>) -> Bytes {
    let page = PAGE.replacen("{style}", STYLE, 1);
    page.replace("{host}", &host(authority)).into()
}

/// What the page may do: be styled by its own style, and show its icon.
pub(super) static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; img-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

/// The name and port that a client is given; nothing that has a meaning in HTML.
fn host(authority: Option<&Authority>) -> String {
    let text = authority.map_or("", |authority| {
        let text = authority.as_str();
        text.strip_suffix(":443").unwrap_or(text)
    });
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']' | '_');
    if text.is_empty() || !text.chars().all(is_plain) {
        "ADDRESS".to_owned()
    } else {
        text.to_ascii_lowercase()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_names_the_address_under_which_it_was_asked_for_and_nothing_else() {
        for (asked, shown) in [
            ("Desk.example.com", "desk.example.com"),
            ("desk.example.com:443", "desk.example.com"),
            ("desk.example.com:8443", "desk.example.com:8443"),
            ("[2001:db8::1]:8443", "[2001:db8::1]:8443"),
            ("a&b@host", "ADDRESS"),
            ("x'y", "ADDRESS"),
        ] {
            let page = page(asked.parse().ok().as_ref());
            let page = std::str::from_utf8(&page).unwrap();
            assert!(
                page.contains(&format!("<code>portcullis connect {shown}</code>")),
                "{asked}"
            );
            assert!(page.contains(&format!("<code>{shown}</code>")), "{asked}");
            assert!(!page.contains(env!("CARGO_PKG_VERSION")));
        }
    }

    #[test]
    fn the_policy_allows_exactly_its_style() {
        let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
        assert!(POLICY.to_str().unwrap().contains(&hash));
        assert!(!PAGE.contains("style=") && !PAGE.contains("<script"));
    }
}
