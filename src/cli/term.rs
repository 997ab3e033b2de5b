//! What the terminal can show: colour and Unicode.

use std::borrow::Cow;
use std::io::{self, IsTerminal};

use clap::ValueEnum;

/// When to colour the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Colour {
    /// On a terminal, unless NO_COLOR is set or TERM is dumb.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What standard output can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Whether colours are shown.
    pub colour: bool,
    /// Whether more than ASCII is shown.
    pub utf8: bool,
}

/// The colours in use; each stands beside a word that says the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ink {
    /// Something held.
    Good,
    /// Something wants a look.
    Warn,
    /// Something failed.
    Bad,
    /// Less important.
    Dim,
}

impl Term {
    /// What the standard output of this process can show.
    pub fn of_process(choice: Colour) -> Self {
        Self::decide(choice, io::stdout().is_terminal(), |name| std::env::var(name).ok())
    }

    /// Decides from the user's wish, the kind of output and the environment.
    pub fn decide(choice: Colour, is_terminal: bool, variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let colour = match choice {
            Colour::Always => true,
            Colour::Never => false,
            Colour::Auto => is_terminal && set("NO_COLOR").is_none() && set("TERM").is_none_or(|term| term != "dumb"),
        };
        // The first that is set wins, as in setlocale(3).
        let locale = set("LC_ALL")
            .or_else(|| set("LC_CTYPE"))
            .or_else(|| set("LANG"))
            .unwrap_or_default();
        let locale = locale.to_ascii_lowercase();
        Self {
            colour,
            utf8: locale.contains("utf-8") || locale.contains("utf8"),
        }
    }

    /// The text in a colour, if colours are shown.
    pub fn paint(self, ink: Ink, text: &str) -> String {
        let code = match ink {
            Ink::Good => 32,
            Ink::Warn => 33,
            Ink::Bad => 31,
            Ink::Dim => 2,
        };
        if self.colour {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    /// The text as it can be shown: without UTF-8, what is not ASCII is written as its number.
    pub fn shown(self, text: &str) -> Cow<'_, str> {
        if self.utf8 || text.is_ascii() {
            return Cow::Borrowed(text);
        }
        let mut plain = String::with_capacity(text.len());
        for c in text.chars() {
            match c {
                '…' => plain.push_str("..."),
                c if c.is_ascii() => plain.push(c),
                c => plain.extend(c.escape_unicode()),
            }
        }
        Cow::Owned(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decided(choice: Colour, is_terminal: bool, environment: &[(&str, &str)]) -> Term {
        Term::decide(choice, is_terminal, |name| {
            environment
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn colour_is_for_terminals_that_want_it() {
        assert!(decided(Colour::Auto, true, &[("TERM", "xterm")]).colour);
        assert!(!decided(Colour::Auto, false, &[]).colour);
        assert!(!decided(Colour::Auto, true, &[("NO_COLOR", "1")]).colour);
        assert!(decided(Colour::Auto, true, &[("NO_COLOR", "")]).colour);
        assert!(!decided(Colour::Auto, true, &[("TERM", "dumb")]).colour);
        assert!(decided(Colour::Always, false, &[("NO_COLOR", "1")]).colour);
        assert!(!decided(Colour::Never, true, &[]).colour);
    }

    #[test]
    fn the_strongest_locale_variable_decides_about_unicode() {
        assert!(decided(Colour::Auto, true, &[("LANG", "de_DE.UTF-8")]).utf8);
        assert!(decided(Colour::Auto, true, &[("LC_ALL", ""), ("LC_CTYPE", "C.utf8")]).utf8);
        assert!(!decided(Colour::Auto, true, &[("LC_ALL", "C"), ("LANG", "de_DE.UTF-8")]).utf8);
        assert!(!decided(Colour::Auto, true, &[]).utf8);
    }

    #[test]
    fn without_unicode_nothing_else_is_lost() {
        let ascii = Term {
            colour: false,
            utf8: false,
        };
        assert_eq!(ascii.shown("user \"ä\" …"), "user \"\\u{e4}\" ...");
        assert_eq!(
            Term {
                colour: false,
                utf8: true
            }
            .shown("ä"),
            "ä"
        );
    }

    #[test]
    fn paint_is_invisible_without_colour() {
        assert_eq!(
            Term {
                colour: false,
                utf8: true
            }
            .paint(Ink::Bad, "error"),
            "error"
        );
        assert_eq!(
            Term {
                colour: true,
                utf8: true
            }
            .paint(Ink::Bad, "error"),
            "\u{1b}[31merror\u{1b}[0m"
        );
    }
}
