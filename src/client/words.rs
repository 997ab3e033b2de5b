//! Words of a gateway, made fit for a terminal.

/// The text without what could command a terminal: control characters but the line feed, and marks that reorder text.
///
/// It is cut after 4,096 characters.
pub fn printable(text: &str) -> String {
    let fit = |c: &char| *c == '\n' || !(c.is_control() || REORDERING.contains(c));
    text.chars().filter(fit).take(LONGEST).collect()
}

/// The same on one line.
pub fn printable_line(text: &str) -> String {
    printable(&text.replace('\n', " ")).trim().to_owned()
}

const LONGEST: usize = 4096;
const REORDERING: [char; 12] = [
    '\u{061c}', '\u{200e}', '\u{200f}', '\u{202a}', '\u{202b}', '\u{202c}', '\u{202d}', '\u{202e}', '\u{2066}',
    '\u{2067}', '\u{2068}', '\u{2069}',
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gateway_cannot_command_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\u{9b}c\r\u{202e}d\ne"), "a[2Jbcd\ne");
        assert_eq!(printable_line(" a\n\tb \n"), "a b");
    }

    #[test]
    fn endless_words_are_cut() {
        assert_eq!(printable(&"ä".repeat(10_000)).chars().count(), 4096);
    }
}
