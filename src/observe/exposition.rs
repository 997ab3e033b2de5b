//! The Prometheus text format, version 0.0.4.

use std::fmt::{Display, Write as _};

use super::traffic::Distribution;

/// The `Content-Type` of the format.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// A document in the making: families one after another, each with its samples.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    family: &'static str,
}

impl Exposition {
    /// Begins a family of values that only grow; its name ends in `_total`.
    pub fn counter(&mut self, name: &'static str, help: &'static str) {
        debug_assert!(name.ends_with("_total"), "{name}");
        self.begin(name, "counter", help);
    }

    /// Begins a family of values that go up and down.
    pub fn gauge(&mut self, name: &'static str, help: &'static str) {
        self.begin(name, "gauge", help);
    }

    /// Begins a family of times, of which it is told how often each lasted how long.
    pub fn histogram(&mut self, name: &'static str, help: &'static str) {
        debug_assert!(name.ends_with("_seconds"), "{name}");
        self.begin(name, "histogram", help);
    }

    /// Adds a sample to the family that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.line("", labels, value);
    }

    /// Adds times of one kind to the [histogram](Self::histogram) that was begun last.
    pub fn times(&mut self, label: (&str, &str), times: &Distribution) {
        for (bound, count) in times.up_to() {
            self.line("_bucket", &[label, ("le", bound)], count);
        }
        let sum = times.sum();
        self.line(
            "_sum",
            &[label],
            format_args!("{}.{:06}", sum.as_secs(), sum.subsec_micros()),
        );
        self.line("_count", &[label], times.count());
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(self.family);
        self.text.push_str(suffix);
        for (place, (name, text)) in labels.iter().enumerate() {
            self.text.push(if place == 0 { '{' } else { ',' });
            self.text.push_str(name);
            self.text.push_str("=\"");
            self.text.extend(text.chars().flat_map(escaped));
            self.text.push('"');
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, " {value}");
    }

    /// The document.
    pub fn finish(self) -> String {
        self.text
    }

    fn begin(&mut self, name: &'static str, kind: &str, help: &str) {
        self.family = name;
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }
}

fn escaped(c: char) -> impl Iterator<Item = char> {
    let (first, second) = match c {
        '\\' => ('\\', Some('\\')),
        '"' => ('\\', Some('"')),
        '\n' => ('\\', Some('n')),
        other => (other, None),
    };
    std::iter::once(first).chain(second)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::observe::traffic::Traffic;

    #[test]
    fn a_document_has_help_type_and_samples() {
        let mut exposition = Exposition::default();
        exposition.counter("portcullis_things_total", "Things.");
        exposition.sample(&[("kind", "a \"b\" \\ \n"), ("reason", "c")], 7);
        exposition.gauge("portcullis_level", "Level.");
        exposition.sample(&[], 0);
        exposition.histogram("portcullis_wait_seconds", "Waits.");
        let waits = Traffic::default().pool("shop");
        waits.connected(Duration::from_millis(2));
        waits.connected(Duration::from_secs(90));
        exposition.times(("pool", "shop"), &waits.connect_times());
        let expected = r#"# HELP portcullis_things_total Things.
# TYPE portcullis_things_total counter
portcullis_things_total{kind="a \"b\" \\ \n",reason="c"} 7
# HELP portcullis_level Level.
# TYPE portcullis_level gauge
portcullis_level 0
# HELP portcullis_wait_seconds Waits.
# TYPE portcullis_wait_seconds histogram
portcullis_wait_seconds_bucket{pool="shop",le="0.0005"} 0
portcullis_wait_seconds_bucket{pool="shop",le="0.001"} 0
portcullis_wait_seconds_bucket{pool="shop",le="0.0025"} 1
"#;
        let document = exposition.finish();
        assert_eq!(document.get(..expected.len()), Some(expected));
        let end = r#"
portcullis_wait_seconds_bucket{pool="shop",le="10"} 1
portcullis_wait_seconds_bucket{pool="shop",le="+Inf"} 2
portcullis_wait_seconds_sum{pool="shop"} 90.002000
portcullis_wait_seconds_count{pool="shop"} 2
"#;
        assert!(document.ends_with(end), "{document}");
    }
}
