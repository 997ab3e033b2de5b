//! The Prometheus text format, version 0.0.4.

use std::fmt::Write as _;

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

    /// Adds a sample to the family that was begun last.
    pub fn sample(&mut self, labels: &[(&str, &str)], value: u64) {
        self.text.push_str(self.family);
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
    use super::*;

    #[test]
    fn a_document_has_help_type_and_samples() {
        let mut exposition = Exposition::default();
        exposition.counter("portcullis_things_total", "Things.");
        exposition.sample(&[("kind", "a \"b\" \\ \n"), ("reason", "c")], 7);
        exposition.gauge("portcullis_level", "Level.");
        exposition.sample(&[], 0);
        let expected = r#"# HELP portcullis_things_total Things.
# TYPE portcullis_things_total counter
portcullis_things_total{kind="a \"b\" \\ \n",reason="c"} 7
# HELP portcullis_level Level.
# TYPE portcullis_level gauge
portcullis_level 0
"#;
        assert_eq!(exposition.finish(), expected);
    }
}
