//! The pages of errors that the gateway makes itself. What a target answers is never replaced by one.
//!
//! Pages of the configuration are read once and held in memory; a change of the configuration reads them again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_SECURITY_POLICY, CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use http::{HeaderName, HeaderValue, Response, StatusCode};

use crate::fault::WebFault;

/// Pages of one's own by status, in memory. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct ErrorPages(BTreeMap<StatusCode, Bytes>);

impl ErrorPages {
    /// Reads the pages of a configuration. Blocks.
    ///
    /// # Errors
    /// [`UnreadablePage`], of the first page that cannot be read or is too large.
    pub fn read(files: &BTreeMap<StatusCode, PathBuf>) -> Result<Self, UnreadablePage> {
        let pages = files.iter().map(|(&status, file)| Ok((status, read(file)?)));
        pages.collect::<Result<_, _>>().map(Self)
    }

    /// Whether there is one for that status.
    pub fn has(&self, status: StatusCode) -> bool {
        self.0.contains_key(&status)
    }

    /// A listener's own pages, and where it has none those of all.
    #[must_use]
    pub fn over(&self, general: &Self) -> Self {
        let mut pages = general.0.clone();
        pages.extend(self.0.iter().map(|(&status, page)| (status, page.clone())));
        Self(pages)
    }

    /// The answer to a request that ended with that fault. `trace` is its reference, for people to tell. After
    /// `retry_after` the client may try again; without it, 503 and 429 name a time of their own.
    ///
    /// The head says how long the body is: after `HEAD`, it goes without.
    pub fn answer(&self, fault: WebFault, trace: &str, retry_after: Option<Duration>) -> (Response<()>, Bytes) {
        let status = fault.status();
        let mut head = Response::new(());
        *head.status_mut() = status;
        let page = self.0.get(&status).cloned();
        if page.is_none() {
            head.headers_mut().insert(CONTENT_SECURITY_POLICY, POLICY.clone());
        }
        let page = page.unwrap_or_else(|| plain(fault, trace));
        put(&mut head, CONTENT_TYPE, "text/html; charset=utf-8");
        put(&mut head, X_CONTENT_TYPE_OPTIONS, "nosniff");
        put(&mut head, CACHE_CONTROL, "no-store");
        head.headers_mut().insert(CONTENT_LENGTH, page.len().into());
        if status == StatusCode::METHOD_NOT_ALLOWED {
            put(&mut head, ALLOW, METHODS);
        }
        if matches!(status, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS) {
            let wait = retry_after.unwrap_or(RETRY_AFTER_DEFAULT);
            // A part of a second that is left counts as a whole one: earlier would be too early.
            let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
            head.headers_mut().insert(RETRY_AFTER, seconds.max(1).into());
        }
        (head, page)
    }
}

/// Why a page cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum UnreadablePage {
    /// The file cannot be read.
    #[error("the error page {path} cannot be read: {cause}. Put the file there, readable for this program's user", path = path.display())]
    File {
        /// As configured.
        path: PathBuf,
        /// What the system says.
        cause: io::Error,
    },
    /// It is too large to be held in memory.
    #[error("the error page {path} is larger than 1 MB. Move its pictures elsewhere", path = path.display())]
    TooLarge {
        /// As configured.
        path: PathBuf,
    },
}

fn read(path: &Path) -> Result<Bytes, UnreadablePage> {
    let mut page = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MOST_BYTES + 1).read_to_end(&mut page));
    match read {
        Ok(length) if length as u64 > MOST_BYTES => Err(UnreadablePage::TooLarge { path: path.to_owned() }),
        Ok(_) => Ok(page.into()),
        Err(cause) => Err(UnreadablePage::File {
            path: path.to_owned(),
            cause,
        }),
    }
}

/// The page where there is no other.
fn plain(fault: WebFault, trace: &str) -> Bytes {
    let status = fault.status();
    let title = status.canonical_reason().unwrap_or("Error");
    let page = PAGE.replace("{title}", title).replacen("{style}", STYLE, 1);
    let page = page.replacen("{code}", status.as_str(), 1);
    let page = page.replacen("{words}", &sentence(fault.words()), 1);
    let page = page.replacen("{remedy}", remedy(fault), 1);
    // A trace is 32 digits; nothing else gets into a page.
    let is_trace = trace.bytes().all(|byte| byte.is_ascii_alphanumeric());
    page.replacen("{trace}", if is_trace { trace } else { "" }, 1).into()
}

fn sentence(words: &str) -> String {
    let mut letters = words.chars();
    letters
        .next()
        .map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// What whoever reads the page can do.
fn remedy(fault: WebFault) -> &'static str {
    match fault {
        WebFault::InvalidRequest
        | WebFault::InvalidVersion
        | WebFault::InvalidMethod
        | WebFault::InvalidHost
        | WebFault::UnsafePath => "Check the address, or reach the page from the start of the application.",
        WebFault::HttpToHttpsPort => "Write https:// before the address.",
        WebFault::HeadTooLarge => "Delete the cookies of this site, and try again.",
        WebFault::BodyTooLarge => "Send less at one time.",
        WebFault::ClientClosed | WebFault::ClientTimeout => "Try again.",
        WebFault::NoRule => "Check the name in the address.",
        WebFault::Misdirected => "Reload the page.",
        WebFault::AddressDenied | WebFault::Unauthenticated => "Ask whoever runs the application for access.",
        WebFault::RateLimited | WebFault::Saturated | WebFault::Draining => "Wait a moment, and try again.",
        WebFault::AuthenticationUnavailable
        | WebFault::NoTarget
        | WebFault::NoHealthyTarget
        | WebFault::ConnectFailed
        | WebFault::UpstreamTls
        | WebFault::UpstreamClosed
        | WebFault::UpstreamInvalid
        | WebFault::UpstreamTimeout => {
            "Try again in a few minutes. If it stays so, tell whoever runs the application this reference."
        }
        WebFault::RewriteLoop | WebFault::Internal => "Tell whoever runs the application this reference.",
    }
}

fn put(head: &mut Response<()>, name: HeaderName, value: &'static str) {
    head.headers_mut().insert(name, HeaderValue::from_static(value));
}

/// What the plain page may do: be styled by its own style.
static POLICY: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{hash}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    );
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
});

const PAGE: &str = include_str!("error_page.html");

const STYLE: &str = include_str!("error_page.css");

/// The methods that are passed on (RFC 9110 section 10.2.1 wants them said with 405).
const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS";

const RETRY_AFTER_DEFAULT: Duration = Duration::from_secs(10);

/// The largest page, in bytes.
const MOST_BYTES: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const TRACE: &str = "0123456789abcdef0123456789abcdef";

    #[test]
    fn the_plain_page_says_what_happened_and_names_its_reference() {
        for fault in WebFault::ALL {
            let (head, body) = ErrorPages::default().answer(fault, TRACE, None);
            let page = std::str::from_utf8(&body).unwrap();
            assert_eq!(head.status(), fault.status());
            assert_eq!(head.headers()[CONTENT_LENGTH], body.len().to_string());
            assert!(
                page.contains(TRACE) && page.contains(&sentence(fault.words())),
                "{page}"
            );
            assert!(!page.contains(['{']) || page.contains("{color-scheme"), "{page}");
            for placeholder in ["{title}", "{style}", "{code}", "{words}", "{remedy}", "{trace}"] {
                assert!(!page.contains(placeholder), "{placeholder}");
            }
            assert!(!page.contains("<script") && !page.contains("style="), "{page}");
            assert!(body.len() < 3000, "{}", body.len());
        }
    }

    #[test]
    fn a_page_of_ones_own_goes_out_as_it_is_and_a_rules_own_comes_first() {
        let folder = tempfile::tempdir().unwrap();
        let page = |name: &str| {
            let file = folder.path().join(name);
            fs::write(&file, name).unwrap();
            file
        };
        let all = [
            (StatusCode::BAD_GATEWAY, page("all-502")),
            (StatusCode::NOT_FOUND, page("all-404")),
        ];
        let all = ErrorPages::read(&all.into()).unwrap();
        let own = ErrorPages::read(&[(StatusCode::BAD_GATEWAY, page("own-502"))].into()).unwrap();
        let pages = own.over(&all);
        assert_eq!(pages.answer(WebFault::NoTarget, TRACE, None).1, "own-502");
        assert_eq!(pages.answer(WebFault::NoRule, TRACE, None).1, "all-404");
        let (head, _) = pages.answer(WebFault::NoRule, TRACE, None);
        // It may have pictures and styles, of which nothing is known here.
        assert!(!head.headers().contains_key(CONTENT_SECURITY_POLICY));
        let (head, _) = pages.answer(WebFault::UpstreamTimeout, TRACE, None);
        assert!(head.headers().contains_key(CONTENT_SECURITY_POLICY));
        // Held in memory: the file may go.
        drop(folder);
        assert_eq!(pages.answer(WebFault::NoTarget, TRACE, None).1, "own-502");
    }

    #[test]
    fn a_page_that_is_missing_or_too_large_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("page.html");
        let read = || ErrorPages::read(&[(StatusCode::BAD_GATEWAY, file.clone())].into());
        assert!(read().unwrap_err().to_string().contains("Put the file there"));
        fs::write(&file, vec![b'x'; 1_000_000]).unwrap();
        assert!(read().is_ok());
        fs::write(&file, vec![b'x'; 1_000_001]).unwrap();
        assert!(matches!(read(), Err(UnreadablePage::TooLarge { .. })));
    }

    #[test]
    fn who_may_come_again_is_told_when() {
        let after = |fault, wait| {
            let (head, _) = ErrorPages::default().answer(fault, TRACE, wait);
            head.headers()
                .get(RETRY_AFTER)
                .map(|value| value.to_str().unwrap().to_owned())
        };
        assert_eq!(
            after(WebFault::RateLimited, Some(Duration::from_millis(1200))).as_deref(),
            Some("2")
        );
        assert_eq!(after(WebFault::RateLimited, Some(Duration::ZERO)).as_deref(), Some("1"));
        assert_eq!(after(WebFault::Saturated, None).as_deref(), Some("10"));
        assert_eq!(after(WebFault::NoTarget, None), None);
    }

    #[test]
    fn a_method_that_is_not_allowed_is_answered_with_those_that_are() {
        let (head, _) = ErrorPages::default().answer(WebFault::InvalidMethod, TRACE, None);
        assert_eq!(head.headers()[ALLOW], METHODS);
    }

    #[test]
    fn nothing_but_digits_and_letters_gets_into_a_page() {
        let (_, body) = ErrorPages::default().answer(WebFault::NoRule, "<b>", None);
        assert!(std::str::from_utf8(&body).unwrap().contains("<code></code>"));
    }

    #[test]
    fn the_policy_allows_exactly_the_style() {
        let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
        assert!(POLICY.to_str().unwrap().contains(&hash));
    }
}
