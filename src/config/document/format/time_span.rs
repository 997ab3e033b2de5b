//! Durations with their units.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Serialize, Serializer};

use crate::config::problem::Problem;

/// A duration with its unit: `120 s`, `10 min`, `10 h`, `250 ms`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::config) struct TimeSpan(pub Duration);

impl TimeSpan {
    pub(in crate::config) const fn seconds(count: u64) -> Self {
        Self(Duration::from_secs(count))
    }

    pub(in crate::config) const fn minutes(count: u64) -> Self {
        Self::seconds(count * 60)
    }

    pub(in crate::config) const fn hours(count: u64) -> Self {
        Self::seconds(count * 3600)
    }
}

impl FromStr for TimeSpan {
    type Err = Problem;

    fn from_str(text: &str) -> Result<Self, Problem> {
        let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let (number, rest) = text.split_at(digits);
        let unit = rest.strip_prefix(' ').unwrap_or(rest);
        let bad = |nearest| Problem::BadDuration {
            value: text.to_owned(),
            nearest,
        };
        if number.is_empty() {
            return Err(bad(None));
        }
        let scale = match unit {
            "ms" => 1,
            "s" => 1_000,
            "min" => 60_000,
            "h" => 3_600_000,
            "" => {
                return Err(Problem::NoUnit {
                    number: number.to_owned(),
                });
            }
            other => return Err(bad(meant_unit(number, other))),
        };
        let count = number.parse::<u64>().ok().and_then(|count| count.checked_mul(scale));
        count
            .map(|count| Self(Duration::from_millis(count)))
            .ok_or_else(|| bad(None))
    }
}

/// The duration that is meant by a unit that does not exist here.
fn meant_unit(number: &str, unit: &str) -> Option<String> {
    let unit = match unit.trim().to_ascii_lowercase().as_str() {
        "ms" | "msec" | "millis" | "milliseconds" | "millisecond" => "ms",
        "s" | "sec" | "secs" | "second" | "seconds" => "s",
        "m" | "min" | "mins" | "minute" | "minutes" => "min",
        "h" | "hr" | "hrs" | "hour" | "hours" => "h",
        "d" | "day" | "days" => return Some(format!("{} h", number.parse::<u64>().ok()?.checked_mul(24)?)),
        _ => return None,
    };
    Some(format!("{number} {unit}"))
}

impl fmt::Display for TimeSpan {
    /// The largest unit that leaves no fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let whole = [(3_600_000, "h"), (60_000, "min"), (1_000, "s")]
            .into_iter()
            .find(|(scale, _)| millis.is_multiple_of(*scale));
        match whole {
            Some(_) if millis == 0 => f.write_str("0 s"),
            Some((scale, unit)) => write!(f, "{} {unit}", millis / scale),
            None => write!(f, "{millis} ms"),
        }
    }
}

impl Serialize for TimeSpan {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(text: &str) -> Option<Duration> {
        text.parse::<TimeSpan>().ok().map(|span| span.0)
    }

    fn remedy(text: &str) -> String {
        text.parse::<TimeSpan>().unwrap_err().remedy()
    }

    #[test]
    fn a_duration_has_a_number_and_a_unit() {
        assert_eq!(span("250 ms"), Some(Duration::from_millis(250)));
        assert_eq!(span("120 s"), Some(Duration::from_secs(120)));
        assert_eq!(span("10min"), Some(Duration::from_secs(600)));
        assert_eq!(span("10 h"), Some(Duration::from_secs(36_000)));
        for bad in [
            "",
            "s",
            "120",
            "-1 s",
            "+1 s",
            "1.5 h",
            "1  s",
            " 1 s",
            "1 s ",
            "1 S",
            "99999999999999999999 h",
            "１ s",
        ] {
            assert_eq!(span(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn the_remedy_of_a_duration_is_what_was_meant() {
        assert_eq!(remedy("120"), r#"Write "120 s"."#);
        assert_eq!(remedy("5 m"), r#"Write "5 min"."#);
        assert_eq!(remedy("2 days"), r#"Write "48 h"."#);
        assert_eq!(
            remedy("soon"),
            r#"Write a whole number and ms, s, min or h, such as "120 s"."#
        );
    }

    #[test]
    fn a_duration_survives_its_text() {
        for millis in [
            0, 1, 250, 1_000, 90_000, 120_000, 300_000, 600_000, 3_600_000, 5_400_000, 36_000_000,
        ] {
            let span = TimeSpan(Duration::from_millis(millis));
            assert_eq!(span.to_string().parse(), Ok(span), "{span}");
        }
        assert_eq!(TimeSpan::seconds(90).to_string(), "90 s");
        assert_eq!(TimeSpan::minutes(5).to_string(), "5 min");
        assert_eq!(TimeSpan::hours(10).to_string(), "10 h");
    }
}
