//! `portcullis check`, `hash-password` and `completions` as their users see them: text, streams and exit codes.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SMALL: &str = r#"
[node]
name = "gw-1"
[listener.public]
bind = ["127.0.0.1:0"]
certificates = ["main"]
[certificate.main]
chain = "main.crt"
key = "main.key"
"#;

/// A folder with a configuration and the files that it names.
fn folder(config: &str) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;

    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("gw.toml"), config).unwrap();
    fs::write(folder.path().join("main.crt"), "chain").unwrap();
    fs::write(folder.path().join("main.key"), "key").unwrap();
    fs::set_permissions(folder.path().join("main.key"), fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

fn portcullis(folder: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
    command
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .env("LC_ALL", "C.UTF-8")
        .stdin(Stdio::null());
    command
}

fn run(config: &str, arguments: &[&str]) -> Output {
    let folder = folder(config);
    portcullis(folder.path(), arguments).output().unwrap()
}

fn out(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn err(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

#[test]
fn a_valid_configuration_is_counted_and_ends_with_0() {
    let hash = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI";
    let config = format!(
        "{SMALL}[directory.user.ann]\npassword_hash = \"{hash}\"\n\
         [directory.desktop.web]\naddress = \"10.0.0.5\"\nprotocols = {{ ssh = 22 }}\nusers = [\"ann\"]\n"
    );
    let output = run(&config, &["check", "gw.toml"]);
    assert_eq!(
        out(&output),
        "gw.toml is valid: 1 listener, 1 certificate, 1 user, 1 desktop.\n"
    );
    assert_eq!((err(&output), output.status.code()), ("", Some(0)));
}

#[test]
fn warnings_are_shown_and_end_with_0() {
    let output = run(SMALL, &["check", "gw.toml"]);
    assert_eq!(
        out(&output),
        "gw.toml:1:1  warning  directory: there is no user, so nobody can sign in. Add [directory.user.NAME], or set session_gateway = false in every listener.\n\
         1 warning. gw.toml is valid.\n"
    );
    assert_eq!((err(&output), output.status.code()), ("", Some(0)));
}

#[test]
fn rules_that_never_hold_are_warned_of_and_circles_are_refused() {
    let rules = "[pool.shop]\ntargets = [\"10.0.0.5\"]\n\
                 [rule.wild]\nhosts = [\"*.example.com\"]\npriority = 10\npool = \"shop\"\n\
                 [rule.exact]\nhosts = [\"shop.example.com\"]\npriority = 20\npool = \"shop\"\n";
    let output = run(&format!("{SMALL}{rules}"), &["check", "gw.toml"]);
    let warned = "rule.exact: never holds: rule.wild comes first for each of its hosts";
    assert!(out(&output).contains(warned), "{}", out(&output));
    assert_eq!(output.status.code(), Some(0));
    for (more, fault) in [
        (
            "[rule.round]\nhosts = [\"a.test\"]\npriority = 30\nredirect = { listener = \"public\" }\n",
            "round in a circle",
        ),
        (
            "[rule.round]\nhosts = [\"a.test\"]\npriority = 30\npool = \"shop\"\nrewrite = \"round\"\n\
             [[rule.round.path]]\npaths = [\"/a*\"]\npool = \"shop\"\nrewrite = \"round\"\n\
             [[rewrite.round.rule]]\npath = \"/a{var_uri_path}\"\nreevaluate = true\n",
            "which comes back here without end",
        ),
    ] {
        let output = run(&format!("{SMALL}{rules}{more}"), &["check", "gw.toml"]);
        assert!(out(&output).contains(fault), "{}", out(&output));
        assert_eq!(output.status.code(), Some(3));
    }
}

#[test]
fn faults_are_shown_in_columns_and_end_with_3() {
    let output = run(
        &format!("{SMALL}tls_polcy = 1\n[session]\nidle = 120\n"),
        &["check", "gw.toml"],
    );
    assert_eq!(
        out(&output),
        "gw.toml:1:1   warning  directory: there is no user, so nobody can sign in. Add [directory.user.NAME], or set session_gateway = false in every listener.\n\
         gw.toml:10:1  error    certificate.main.tls_polcy: no such setting. Possible here: chain, key, ocsp.\n\
         gw.toml:12:8  error    session.idle: 120 has no unit. Write \"120 s\".\n\
         2 errors, 1 warning. Nothing was changed.\n"
    );
    assert_eq!((err(&output), output.status.code()), ("", Some(3)));
}

#[test]
fn a_wrong_command_line_is_explained_on_standard_error_and_ends_with_2() {
    for arguments in [
        &["check"][..],
        &["check", "a", "b"],
        &["check", "gw.toml", "--schema"],
        &["chekc"],
        &[],
        &["check", "--jsno"],
    ] {
        let output = run(SMALL, arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(out(&output), "", "{arguments:?}");
        assert!(
            err(&output).contains("Usage: portcullis"),
            "{arguments:?}: {}",
            err(&output)
        );
    }
}

#[test]
fn help_is_data_and_shows_two_examples() {
    for command in [
        &["-h"][..],
        &["check", "-h"],
        &["hash-password", "-h"],
        &["completions", "-h"],
        &["check", "--help"],
    ] {
        let output = run(SMALL, command);
        assert_eq!((err(&output), output.status.code()), ("", Some(0)));
        let examples = out(&output)
            .lines()
            .filter(|line| line.starts_with("  portcullis "))
            .count();
        assert_eq!(examples, 2, "{command:?}: {}", out(&output));
        assert!(
            out(&output).lines().all(|line| line.chars().count() <= 100),
            "{}",
            out(&output)
        );
    }
}

#[test]
fn a_missing_file_is_a_fault_of_its_own() {
    let output = run(SMALL, &["check", "none.toml"]);
    assert_eq!(
        out(&output),
        "none.toml  error    cannot be read: no such file or directory. \
         Give the path of a file that this user can read.\n1 error. Nothing was changed.\n"
    );
    assert_eq!(output.status.code(), Some(3));
}

#[test]
fn colour_is_for_those_who_ask_for_it() {
    let folder = folder(SMALL);
    let painted = |arguments: &[&str], no_color: &str| {
        let output = portcullis(folder.path(), arguments)
            .env("NO_COLOR", no_color)
            .output()
            .unwrap();
        out(&output).contains('\u{1b}')
    };
    assert!(!painted(&["check", "gw.toml"], ""));
    assert!(painted(&["check", "gw.toml", "--color", "always"], ""));
    assert!(painted(&["--color", "always", "check", "gw.toml"], "1"));
    assert!(!painted(&["check", "gw.toml", "--color", "never"], ""));
    assert!(!painted(&["check", "gw.toml"], "1"));
}

#[test]
fn a_terminal_without_unicode_gets_ascii() {
    let folder = folder(&format!("{SMALL}\"schlüssel\" = 1\n"));
    let shown = |locale: &str| {
        let output = portcullis(folder.path(), &["check", "gw.toml"])
            .env("LC_ALL", locale)
            .output()
            .unwrap();
        out(&output).to_owned()
    };
    assert!(shown("C.UTF-8").contains("certificate.main.\"schlüssel\": no such setting"));
    assert!(shown("C").contains("certificate.main.\"schl\\u{fc}ssel\": no such setting"));
}

#[test]
fn programs_get_one_document() {
    let output = run(
        &format!("{SMALL}[session]\nidle = 120\n"),
        &["check", "gw.toml", "--json"],
    );
    assert_eq!((err(&output), output.status.code()), ("", Some(3)));
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "portcullis.check.v1");
    assert_eq!(document["file"], "gw.toml");
    assert_eq!(document["faults"][1]["path"], "session.idle");
    assert_eq!(document["faults"][1]["line"], 11);
}

#[test]
fn the_schema_is_one_document() {
    let output = run(SMALL, &["check", "--schema"]);
    assert_eq!((err(&output), output.status.code()), ("", Some(0)));
    let schema: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        schema["properties"]["session"]["properties"]["lifetime"]["default"],
        "10 h"
    );
}

#[test]
fn a_reader_that_goes_away_is_no_fault() {
    let folder = folder(&format!("{SMALL}[session]\nidle = 120\n"));
    let mut child = portcullis(folder.path(), &["check", "--schema"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn a_password_from_standard_input_or_a_file_becomes_a_hash_that_the_check_accepts() {
    let folder = folder(SMALL);
    let mut child = portcullis(folder.path(), &["hash-password"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"plum-harbor-41\n").unwrap();
    let piped = child.wait_with_output().unwrap();
    fs::write(folder.path().join("ann.txt"), "plum-harbor-41").unwrap();
    let from_file = portcullis(folder.path(), &["hash-password", "--password-file", "ann.txt"])
        .output()
        .unwrap();
    for output in [piped, from_file] {
        assert_eq!((err(&output), output.status.code()), ("", Some(0)));
        let hash = out(&output).trim_end();
        assert!(hash.starts_with("$argon2id$v=19$m=19456,t=2,p=1$"), "{hash}");
        fs::write(
            folder.path().join("gw.toml"),
            format!("{SMALL}[directory.user.ann]\npassword_hash = '{hash}'\n"),
        )
        .unwrap();
        let checked = portcullis(folder.path(), &["check", "gw.toml"]).output().unwrap();
        assert_eq!(checked.status.code(), Some(0), "{}", out(&checked));
    }
}

#[test]
fn no_password_means_no_hash_and_1() {
    let output = run(SMALL, &["hash-password"]);
    assert_eq!(err(&output), "No hash was made: the password is empty. Choose one.\n");
    assert_eq!((out(&output), output.status.code()), ("", Some(1)));
    let output = run(SMALL, &["hash-password", "--password-file", "none.txt"]);
    assert_eq!((out(&output), output.status.code()), ("", Some(1)));
    assert!(
        err(&output).starts_with("No hash was made: none.txt cannot be read: "),
        "{}",
        err(&output)
    );
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let output = run(SMALL, &["completions", shell]);
        assert_eq!((err(&output), output.status.code()), ("", Some(0)));
        assert!(out(&output).contains("hash-password"), "{shell}");
    }
}
