//! The rules of the house that no compiler checks: which module may import which, and what the top level holds.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The modules from the ground up. A module may import those before it, and its own folder.
///
/// Steps stand in pipeline order, because each consumes the type that the step before it made
/// (docs/architecture.md).
const FROM_THE_GROUND_UP: [&str; 23] = [
    "types",
    "fault",
    "clock",
    "config",
    "observe",
    "listen",
    "secure",
    "wire",
    "route",
    "inspect",
    "upstream",
    "broker",
    "authenticate",
    "grant",
    "fleet",
    "tunnel",
    "control",
    "publish",
    "client",
    "gateway",
    "admin",
    "node",
    "cli",
];

/// What the repository may hold at its top, beside dot-files.
const TOP_LEVEL: [&str; 10] = [
    "Cargo.toml",
    "Cargo.lock",
    "LICENSE",
    "README.md",
    "src",
    "appliance",
    "admin-ui",
    "tests",
    "ova",
    "docs",
];

#[test]
fn a_module_imports_only_what_stands_below_it() {
    let rank: BTreeMap<_, _> = FROM_THE_GROUND_UP
        .iter()
        .enumerate()
        .map(|(rank, name)| (*name, rank))
        .collect();
    let mut faults = Vec::new();
    for file in rust_files(Path::new("src")) {
        let module = module_of(&file);
        if module == "main" || module == "lib" {
            continue;
        }
        let Some(own) = rank.get(module.as_str()) else {
            faults.push(format!("{}: module {module} has no place in the order", file.display()));
            continue;
        };
        for (line, imported) in imports(&fs::read_to_string(&file).unwrap()) {
            match rank.get(imported.as_str()) {
                Some(other) if other <= own => {}
                Some(_) => faults.push(format!(
                    "{}:{line}: {module} must not import {imported}",
                    file.display()
                )),
                None => faults.push(format!(
                    "{}:{line}: {imported} has no place in the order",
                    file.display()
                )),
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn imports_are_found_in_every_form() {
    let text = "use crate::grant::Store;\nlet x = crate::tunnel::open();\nuse crate::{clock, types::{Step, Secret}};\n";
    let found: Vec<_> = imports(text).into_iter().map(|(_, name)| name).collect();
    assert_eq!(found, ["grant", "tunnel", "clock", "types"]);
}

#[test]
fn the_top_level_holds_nothing_else() {
    for entry in fs::read_dir(".").unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        // What builds and failing tests leave behind is not of the repository.
        let left_behind = name == "target" || name == "proptest-regressions";
        let known = name.starts_with('.') || left_behind || TOP_LEVEL.contains(&name.as_str());
        assert!(known, "{name} does not belong at the top of the repository");
    }
}

#[test]
fn no_source_file_outgrows_six_hundred_lines() {
    for file in rust_files(Path::new("src"))
        .into_iter()
        .filter(|file| !is_for_tests(file))
    {
        let text = fs::read_to_string(&file).unwrap();
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
        let lines = code.lines().count();
        assert!(lines <= 600, "{} has {lines} lines: is it one concept?", file.display());
    }
}

/// Whether the module above declares this one for tests only.
fn is_for_tests(file: &Path) -> bool {
    let name = file.file_stem().unwrap().to_str().unwrap();
    let above = file.parent().unwrap().with_extension("rs");
    let declared = fs::read_to_string(above).unwrap_or_default();
    declared.contains(&format!("#[cfg(test)]\nmod {name};"))
}

fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// The top-level module that a file belongs to: `src/tunnel/https/chunk.rs` is of `tunnel`.
fn module_of(file: &Path) -> String {
    let inside = file.strip_prefix("src").unwrap();
    let first = inside.components().next().unwrap().as_os_str().to_str().unwrap();
    first.trim_end_matches(".rs").to_owned()
}

/// Every top-level module named after `crate::`, with its line; grouped imports are taken apart.
fn imports(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (start, _) in text.match_indices("crate::") {
        if text[..start].ends_with(|c: char| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let line = text[..start].lines().count().max(1);
        let rest = &text[start + "crate::".len()..];
        match rest.strip_prefix('{') {
            Some(group) => found.extend(heads_of(group).into_iter().map(|name| (line, name))),
            None => found.push((line, head_of(rest))),
        }
    }
    found.retain(|(_, name)| !name.is_empty());
    found
}

/// The first path segment of each member of an import group whose opening brace is already read.
fn heads_of(group: &str) -> Vec<String> {
    let mut depth = 0_usize;
    let mut member = String::new();
    let mut heads = Vec::new();
    for c in group.chars() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => heads.push(head_of(&std::mem::take(&mut member))),
            _ if depth == 0 => member.push(c),
            _ => {}
        }
    }
    heads.push(head_of(&member));
    heads
}

fn head_of(path: &str) -> String {
    path.trim_start()
        .chars()
        .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
        .collect()
}
