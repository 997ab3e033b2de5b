//! Spans of time as operators write and read them.

use std::str::FromStr;
use std::time::Duration;

/// A span as it is written: a whole number and `s`, `min`, `h` or `d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write a whole number and s, min, h or d, such as 90d".to_owned();
        let end = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(end);
        let seconds = match unit.trim_start() {
            "s" => 1,
            "min" => 60,
            "h" => 3600,
            "d" => 24 * 3600,
            _ => return Err(wrong()),
        };
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let seconds = number.checked_mul(seconds).filter(|seconds| *seconds > 0);
        seconds
            .map(|seconds| Self(Duration::from_secs(seconds)))
            .ok_or_else(wrong)
    }
}

/// A span of seconds in the two units that matter: `3 h 20 min`, `45 s`.
pub(super) fn in_words(seconds: u64) -> String {
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, min, s) => format!("{min} min {s} s"),
        (h, min, _) => format!("{h} h {min} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_a_number_and_a_unit() {
        let read = |text: &str| text.parse::<Span>().map(|span| span.0.as_secs());
        assert_eq!(read("90d"), Ok(90 * 24 * 3600));
        assert_eq!(read("10 h"), Ok(36_000));
        assert_eq!(read("30min"), Ok(1800));
        assert_eq!(read("45s"), Ok(45));
        for wrong in [
            "",
            "5",
            "h",
            "0s",
            "-1h",
            "1m",
            "1.5h",
            "99999999999999999999d",
            "18446744073709551615d",
        ] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_span_is_told_in_two_units() {
        assert_eq!(in_words(45), "45 s");
        assert_eq!(in_words(125), "2 min 5 s");
        assert_eq!(in_words(12_059), "3 h 20 min");
    }
}
