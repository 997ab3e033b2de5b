//! What a check found, and how it is written for people and for programs.

use std::fmt;

use serde_json::{Value, json};

use super::path::SettingPath;
use super::problem::Problem;

/// Something wrong with a configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Whether the configuration is refused for it.
    pub severity: Severity,
    /// Where in the file; `None` if it is the file itself.
    pub position: Option<Position>,
    /// Which setting; the document's root if it is no setting.
    pub path: SettingPath,
    /// What is wrong, and what to do.
    pub problem: Problem,
}

/// How bad a fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// The configuration is accepted, but hardly does what was meant.
    Warning,
}

impl Severity {
    /// The word that people and programs read.
    pub fn word(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
        }
    }
}

/// A place in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Character in the line, from 1.
    pub column: usize,
}

/// All faults of one file, in the order of its lines.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults {
    file: String,
    list: Vec<Fault>,
    left_out: usize,
}

impl Faults {
    /// More are counted, not listed.
    const MAX: usize = 500;

    pub(super) fn new(file: impl Into<String>, mut list: Vec<Fault>) -> Self {
        list.sort_by(|a, b| (a.position, a.severity, &a.path).cmp(&(b.position, b.severity, &b.path)));
        let errors = list.iter().filter(|fault| fault.severity == Severity::Error).count();
        let left_out = list.len().saturating_sub(Self::MAX);
        if left_out > 0 {
            // A warning must not push an error off the list.
            let mut warnings = Self::MAX.saturating_sub(errors);
            list.retain(|fault| {
                let kept = fault.severity == Severity::Error || warnings > 0;
                warnings -= usize::from(kept && fault.severity == Severity::Warning);
                kept
            });
            list.truncate(Self::MAX);
        }
        Self {
            file: file.into(),
            list,
            left_out,
        }
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Whether the configuration is refused.
    pub fn has_errors(&self) -> bool {
        self.errors() > 0
    }

    /// The faults, in the order of the file's lines.
    pub fn iter(&self) -> impl Iterator<Item = &Fault> {
        self.list.iter()
    }

    /// The file as its user named it.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// One line a fault, in aligned columns: place, severity, setting, what is wrong and what to do.
    ///
    /// `paint` dresses the severity's word, whose width it must not change on the screen.
    pub fn text(&self, paint: impl Fn(Severity, &str) -> String) -> String {
        let places: Vec<String> = self.list.iter().map(|fault| self.place(fault)).collect();
        let width = places.iter().map(|place| place.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for (fault, place) in self.list.iter().zip(&places) {
            let word = paint(fault.severity, &format!("{:7}", fault.severity.word()));
            text.push_str(&format!("{place:width$}  {word}  {}\n", fault.words()));
        }
        if self.left_out > 0 {
            text.push_str(&format!("{} more are not shown.\n", self.left_out));
        }
        text
    }

    /// `2 errors, 1 warning.`
    pub fn summary(&self) -> String {
        let counted = |count: usize, word: &str| match count {
            0 => None,
            1 => Some(format!("1 {word}")),
            _ => Some(format!("{count} {word}s")),
        };
        let parts: Vec<String> = [counted(self.errors(), "error"), counted(self.warnings(), "warning")]
            .into_iter()
            .flatten()
            .collect();
        if parts.is_empty() {
            "No faults.".to_owned()
        } else {
            format!("{}.", parts.join(", "))
        }
    }

    /// One document for programs.
    pub fn json(&self) -> Value {
        json!({
            "schema": "portcullis.check.v1",
            "file": self.file,
            "valid": !self.has_errors(),
            "errors": self.errors(),
            "warnings": self.warnings(),
            "left_out": self.left_out,
            "faults": self.list.iter().map(Fault::json).collect::<Vec<_>>(),
        })
    }

    fn errors(&self) -> usize {
        self.list
            .iter()
            .filter(|fault| fault.severity == Severity::Error)
            .count()
    }

    fn warnings(&self) -> usize {
        self.list.len() - self.errors()
    }

    fn place(&self, fault: &Fault) -> String {
        match fault.position {
            Some(Position { line, column }) => format!("{}:{line}:{column}", self.file),
            None => self.file.clone(),
        }
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|_, word| word.to_owned()))
    }
}

impl std::error::Error for Faults {}

impl Fault {
    /// `listener.public.tls_polcy: no such setting. Did you mean tls_policy?`
    pub fn words(&self) -> String {
        let what = format!("{}. {}", self.problem, self.problem.remedy());
        if self.path.is_root() {
            what
        } else {
            format!("{}: {what}", self.path)
        }
    }

    fn json(&self) -> Value {
        json!({
            "severity": self.severity.word(),
            "line": self.position.map(|at| at.line),
            "column": self.position.map(|at| at.column),
            "path": self.path.to_string(),
            "code": self.problem.code(),
            "what": self.problem.to_string(),
            "remedy": self.problem.remedy(),
        })
    }
}
