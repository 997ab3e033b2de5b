//! Cookies of affinity: whatever clients send, they reach a target by the value that was given for it, and by no other.
#![no_main]

use std::sync::LazyLock;

use http::header::{COOKIE, SET_COOKIE};
use http::{HeaderMap, HeaderValue};
use libfuzzer_sys::fuzz_target;
use portcullis::config::web;
use portcullis::publish::affinity::{Affinity, AffinityKey, AffinityValue};
use portcullis::types::Secret;

const NAMES: [&str; 2] = ["N", "NCORS"];

struct Known {
    affinity: Affinity<usize>,
    values: Vec<AffinityValue>,
}

/// Of the key "key", under which the seeds were written.
static KNOWN: LazyLock<Known> = LazyLock::new(|| {
    let key = AffinityKey::new(&Secret::new("key"));
    let values: Vec<_> = (0..4).map(|n| key.value(&format!("10.0.0.{n}:80"), "")).collect();
    let settings = web::Affinity {
        cookie: NAMES[0].to_owned(),
        same_site: web::SameSite::Lax,
    };
    let targets = values.iter().copied().zip(0..);
    Known {
        affinity: Affinity::new(&settings, targets),
        values,
    }
});

fuzz_target!(|data: &[u8]| {
    let mut headers = HeaderMap::new();
    for line in data.split(|byte| *byte == b'\n') {
        let Ok(line) = HeaderValue::from_bytes(line) else {
            return;
        };
        headers.append(COOKIE, line);
    }
    let pairs = || {
        headers
            .get_all(COOKIE)
            .iter()
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
    };
    let value_of = |name: &str| {
        pairs().find_map(|pair| {
            let at = pair.iter().position(|byte| *byte == b'=')?;
            let (left, right) = (&pair[..at], &pair[at + 1..]);
            (left.trim_ascii_start() == name.as_bytes()).then(|| right.trim_ascii_end())
        })
    };
    let meant = NAMES.iter().find_map(|name| {
        let value = value_of(name)?;
        KNOWN.values.iter().position(|known| known.digits() == value)
    });
    assert_eq!(KNOWN.affinity.target(&headers), meant.as_ref());

    // What is given leads back, whatever stands beside it under other names.
    let given = &KNOWN.values[data.len() % KNOWN.values.len()];
    let mut answer = HeaderMap::new();
    KNOWN.affinity.put(&mut answer, *given, true);
    let mut next = HeaderMap::new();
    for line in answer.get_all(SET_COOKIE) {
        let pair = line.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default();
        next.append(COOKIE, HeaderValue::from_bytes(pair).unwrap());
    }
    next.extend(headers.get_all(COOKIE).iter().map(|line| (COOKIE, line.clone())));
    assert_eq!(KNOWN.affinity.target(&next), Some(&(data.len() % KNOWN.values.len())));
});
