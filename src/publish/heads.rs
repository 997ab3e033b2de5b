//! Heads for tests.

use http::{HeaderMap, HeaderName, HeaderValue};

/// A head, a field a line.
pub(super) fn head(lines: &[(&str, &str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(
            name.parse::<HeaderName>().unwrap(),
            value.parse::<HeaderValue>().unwrap(),
        );
    }
    headers
}

/// The values of a field, a line each.
pub(super) fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    headers
        .get_all(name)
        .iter()
        .map(|value| value.to_str().unwrap())
        .collect()
}
