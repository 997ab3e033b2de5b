//! From a text to a checked configuration: tree, shape, document, check.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use toml::de::{DeTable, Deserializer, Error as SyntaxError};

use super::check::{Check, Places};
use super::document::{self, Document};
use super::environment::{Environment, Process};
use super::path::SettingPath;
use super::problem::Problem;
use super::report::{Fault, Faults, Position};
use super::shape::{Found, Shape};
use super::{Config, Source};

/// The longest file, in bytes: ten thousand rules fit well.
const MAX: usize = 8 * 1024 * 1024;

/// Reads and checks the configuration at `path`, and everything that it refers to. Blocks.
///
/// Returns the configuration with the warnings.
///
/// # Errors
///
/// All faults at once, with the warnings among them.
pub fn load(path: &Path) -> Result<(Config, Faults), Faults> {
    parse(&text_of(path)?, path, &Process)
}

/// Checks the configuration in `text`, which stands, or will stand, in `file`: relative paths start at its folder.
///
/// Returns the configuration with the warnings.
///
/// # Errors
///
/// All faults at once, with the warnings among them.
pub fn parse(text: &str, file: &Path, environment: &dyn Environment) -> Result<(Config, Faults), Faults> {
    check_in(
        text,
        file,
        environment,
        &document::SCHEMA,
        |check, document: Document, source| check.config(document, source),
    )
}

/// Takes a text all the way: tree, shape by the schema, document, and what `check` makes of it.
///
/// # Errors
///
/// All faults at once, with the warnings among them.
pub(super) fn check_in<D: DeserializeOwned, C>(
    text: &str,
    file: &Path,
    environment: &dyn Environment,
    schema: &Json,
    check: impl FnOnce(&mut Check<'_>, D, Source) -> Option<C>,
) -> Result<(C, Faults), Faults> {
    let report = |found| Faults::new(file.display().to_string(), located(text, found));
    let (mut root, errors) = DeTable::parse_recoverable(text);
    let mut found: Vec<Found> = errors.iter().map(syntax_fault).collect();
    if found.iter().any(|found| found.problem != Problem::SecondTime) {
        return Err(report(found));
    }
    let shape = Shape::of(schema, &mut root);
    found.extend(shape.found);
    let places = Places::of(&root, shape.kept, shape.removed);
    let source = Source::of(schema, root.get_ref(), file.to_owned());
    let checked = match D::deserialize(Deserializer::from(root)) {
        Ok(document) => {
            let mut run = Check::new(environment, file.parent().unwrap_or(Path::new("")), places);
            let checked = check(&mut run, document, source);
            found.extend(run.found);
            checked
        }
        Err(refusal) => {
            let at = refusal.span().map_or(0, |span| span.start);
            found.push(Found {
                path: SettingPath::default(),
                at,
                problem: Problem::Unforeseen,
            });
            None
        }
    };
    let faults = report(found);
    match checked {
        Some(checked) if !faults.has_errors() => Ok((checked, faults)),
        _ => Err(faults),
    }
}

/// The text of the file at `path`. Blocks.
///
/// # Errors
///
/// It cannot be read, is too long, or no text.
pub(super) fn text_of(path: &Path) -> Result<String, Faults> {
    let refuse = |position, problem: Problem| {
        Err(Faults::new(
            path.display().to_string(),
            vec![fault(position, SettingPath::default(), problem)],
        ))
    };
    let bytes = match read(path) {
        Ok(bytes) => bytes,
        Err(why) => return refuse(None, Problem::Unreadable { why: words_of(&why) }),
    };
    if bytes.len() > MAX {
        return refuse(None, Problem::TooLong { limit: MAX });
    }
    String::from_utf8(bytes).or_else(|wrong| {
        let valid = wrong.utf8_error().valid_up_to();
        let sound = String::from_utf8_lossy(wrong.as_bytes().split_at(valid).0);
        refuse(Some(Cursor::at_start(&sound).position(sound.len())), Problem::NotText)
    })
}

/// The text of the file; one byte more than it may have, so that a longer one is seen.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The words of an I/O error, without its number.
pub(super) fn words_of(error: &io::Error) -> String {
    let text = error.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    let mut chars = words.chars();
    chars
        .next()
        .map_or_else(String::new, |first| first.to_lowercase().chain(chars).collect())
}

/// The faults with their lines and columns.
fn located(text: &str, mut found: Vec<Found>) -> Vec<Fault> {
    found.sort_by_key(|found| found.at);
    let mut cursor = Cursor::at_start(text);
    let mut faults: Vec<Fault> = found
        .into_iter()
        .map(|found| fault(Some(cursor.position(found.at)), found.path, found.problem))
        .collect();
    // What the parser says further of a line mostly follows from the first.
    let syntax = |fault: &Fault| matches!(fault.problem, Problem::Syntax { .. }).then_some(fault.position?.line);
    faults.dedup_by(|later, first| syntax(first).is_some() && syntax(later) == syntax(first));
    faults
}

fn syntax_fault(error: &SyntaxError) -> Found {
    let problem = match error.message() {
        "duplicate key" => Problem::SecondTime,
        why => Problem::Syntax {
            why: why.split(", expected").next().unwrap_or(why).to_owned(),
        },
    };
    Found {
        path: SettingPath::default(),
        at: error.span().map_or(0, |span| span.start),
        problem,
    }
}

fn fault(position: Option<Position>, path: SettingPath, problem: Problem) -> Fault {
    Fault {
        severity: problem.severity(),
        position,
        path,
        problem,
    }
}

/// Counts lines and characters on one way through a text.
struct Cursor<'t> {
    text: &'t str,
    offset: usize,
    position: Position,
}

impl<'t> Cursor<'t> {
    fn at_start(text: &'t str) -> Self {
        Self {
            text,
            offset: 0,
            position: Position { line: 1, column: 1 },
        }
    }

    /// Moves on to a byte offset; one beyond the end is the end, one already passed is where the cursor stands.
    fn position(&mut self, offset: usize) -> Position {
        let offset = offset.min(self.text.len());
        if let Some(passed) = self.text.get(self.offset..offset) {
            for c in passed.chars() {
                match c {
                    '\n' => {
                        self.position = Position {
                            line: self.position.line + 1,
                            column: 1,
                        }
                    }
                    _ => self.position.column += 1,
                }
            }
            self.offset = offset;
        }
        self.position
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_count_lines_and_characters_from_one() {
        let mut cursor = Cursor::at_start("a = 1\nö = \"ß\" x\n");
        let mut at = |at| {
            let Position { line, column } = cursor.position(at);
            (line, column)
        };
        assert_eq!(at(0), (1, 1));
        assert_eq!(at(4), (1, 5));
        assert_eq!(at(6), (2, 1));
        assert_eq!(at(8), (2, 2));
        assert_eq!(at(8), (2, 2));
        assert_eq!(at(1_000), (3, 1));
        assert_eq!(Cursor::at_start("").position(0), Position { line: 1, column: 1 });
    }
}
