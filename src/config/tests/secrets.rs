//! Secrets: where they may stand, how they are read, and that nothing ever repeats one.

use super::*;
use crate::config::schema;
use crate::types::Secret;

const KEY: &str = "hunter2hunter2hunter2hunter2hunter2!";

fn with_key(source: &str) -> String {
    with_ann("").replace(
        "name = \"gw-1\"",
        &format!("name = \"gw-1\"\nrecognition_key = {source}"),
    )
}

fn key_of(source: &str, world: &World) -> Result<Secret, String> {
    match parse(&with_key(source), Path::new("gw.toml"), world) {
        Ok((config, _)) => Ok(config.node.recognition_key.unwrap()),
        Err(faults) => Err(faults.iter().next().unwrap().words()),
    }
}

#[test]
fn a_secret_comes_from_file_environment_or_service_manager() {
    let world = World::of_reference()
        .file("/run/key", format!("{KEY}\n"), 0o600)
        .file("/run/credentials/gw/key", format!("{KEY}\r\n"), 0o400)
        .variable("GW_KEY", KEY)
        .variable("CREDENTIALS_DIRECTORY", "/run/credentials/gw");
    for source in [
        r#"{ file = "/run/key" }"#,
        r#"{ env = "GW_KEY" }"#,
        r#"{ credential = "key" }"#,
    ] {
        assert_eq!(key_of(source, &world), Ok(Secret::new(KEY)), "{source}");
    }
}

#[test]
fn a_secret_that_cannot_be_had_says_why() {
    let world = World::of_reference()
        .file("/run/empty", "", 0o600)
        .file("/run/newline", "\n", 0o600)
        .file("/run/lines", format!("{KEY}\n{KEY}\n"), 0o600)
        .file("/run/long", vec![b'x'; 5_000], 0o600)
        .file("/run/binary", [0xff; 40], 0o600)
        .file("/run/short", "hunter2", 0o600);
    let cases = [
        (
            r#"{ file = "/run/none" }"#,
            "recognition_key.file: \"/run/none\" cannot be read: no such file or directory.",
        ),
        (
            r#"{ file = "/run/empty" }"#,
            "recognition_key.file: \"/run/empty\" is empty.",
        ),
        (r#"{ file = "/run/newline" }"#, "recognition_key: the secret is empty."),
        (
            r#"{ file = "/run/lines" }"#,
            "recognition_key: the secret has more than one line.",
        ),
        (
            r#"{ file = "/run/long" }"#,
            "recognition_key.file: the secret is too long.",
        ),
        (
            r#"{ file = "/run/binary" }"#,
            "recognition_key.file: the secret is no UTF-8 text.",
        ),
        (
            r#"{ file = "/run/short" }"#,
            "recognition_key: the key has fewer than 32 characters.",
        ),
        (
            r#"{ env = "NONE" }"#,
            "recognition_key.env: the environment variable \"NONE\" is not set.",
        ),
        (
            r#"{ credential = "key" }"#,
            "recognition_key.credential: the service manager has given no credentials",
        ),
        (
            r#"{ credential = "../key" }"#,
            "recognition_key.credential: \"../key\" is no name.",
        ),
        (r#"{ file = "" }"#, "recognition_key.file: has 0 characters."),
        (
            r#"{ file = 5 }"#,
            "recognition_key.file: expects a text, not a whole number.",
        ),
        (
            r#"{ fil = "x" }"#,
            "recognition_key.fil: no such setting. Did you mean file?",
        ),
        (
            r#"{ file = "/a", env = "B" }"#,
            "recognition_key: needs exactly one of file, env and credential.",
        ),
        (
            r#"{}"#,
            "recognition_key: needs exactly one of file, env and credential.",
        ),
        (r#"["x"]"#, "recognition_key: expects a table, not a list."),
        (
            r#""hunter2""#,
            "recognition_key: must not stand in the configuration itself.",
        ),
    ];
    for (source, wanted) in cases {
        let words = key_of(source, &world).unwrap_err();
        assert!(words.starts_with(&format!("node.{wanted}")), "{source}: {words}");
    }
}

#[test]
fn a_secret_that_every_user_can_read_is_a_warning() {
    let world = World::of_reference()
        .file("/run/key", KEY, 0o644)
        .file("/etc/portcullis/main.key", "key", 0o604)
        .file("/etc/portcullis/main.crt", "chain", 0o644);
    let (_, warnings) = parse(&with_key(r#"{ file = "/run/key" }"#), Path::new("gw.toml"), &world).unwrap();
    let words: Vec<_> = warnings.iter().map(crate::config::Fault::words).collect();
    assert_eq!(
        words[..2],
        [
            "node.recognition_key.file: \"/run/key\" can be read by every user of this system. Run chmod o= \"/run/key\".",
            "certificate.main.key: \"/etc/portcullis/main.key\" can be read by every user of this system. \
             Run chmod o= \"/etc/portcullis/main.key\".",
        ]
    );
}

#[test]
fn a_password_hash_may_stand_inline_or_elsewhere() {
    let world = World::of_reference()
        .file("/run/ann", format!("{HASH}\n"), 0o600)
        .variable("ANN", "hunter2");
    let parsed = |source: &str| {
        let text = with_ann("").replace(&format!("\"{HASH}\""), source);
        parse(&text, Path::new("gw.toml"), &world)
    };
    let (config, _) = parsed(r#"{ file = "/run/ann" }"#).unwrap();
    assert_eq!(
        config.directory.users.values().next().unwrap().password_hash,
        Secret::new(HASH)
    );
    let faults = parsed(r#"{ env = "ANN" }"#).unwrap_err().to_string();
    assert!(
        faults.contains("directory.user.ann.password_hash: the password hash is not in PHC form"),
        "{faults}"
    );
}

#[test]
fn nothing_ever_repeats_a_secret() {
    let world = World::of_reference()
        .file("/run/bad", "hunter2\nhunter2", 0o644)
        .file("/run/short", "hunter2", 0o644)
        .file("/run/good", KEY, 0o644)
        .variable("SECRET", "hunter2");
    let values = [
        "\"hunter2\"",
        "\"$argon2id$v=19$m=8,t=1,p=1$aHVudGVyMmh1bnRlcjI$aHVudGVyMmh1bnRlcjJodW50ZXIyaHVudGVyMg\"",
        "\"$hunter2$\"",
        "[\"hunter2\"]",
        "{ file = [\"hunter2\"] }",
        "{ file = { hunter = \"hunter2\" } }",
        "{ file = \"/run/bad\" }",
        "{ file = \"/run/short\" }",
        "{ file = \"/run/good\" }",
        "{ env = \"SECRET\" }",
        "'hunter2",
        "\"hunter2\\q\"",
        "hunter2",
        "\"\"\"hunter2",
    ];
    for value in values {
        let inline = with_ann("").replace(&format!("\"{HASH}\""), value);
        for text in [with_key(value), inline] {
            let said = match parse(&text, Path::new("gw.toml"), &world) {
                Ok((config, faults)) => format!("{config:?}{faults}{faults:?}{}", faults.json()),
                Err(faults) => format!("{faults}{faults:?}{}", faults.json()),
            };
            assert!(
                !said.contains("hunter2") && !said.contains("aHVudGVy"),
                "{value}:\n{said}"
            );
        }
    }
}

#[test]
fn a_valid_configuration_shows_no_secret() {
    let (config, _) = checked(&with_key(r#"{ file = "/etc/portcullis/recognition.key" }"#)).unwrap();
    let shown = format!("{config:?}");
    assert!(
        !shown.contains("argon2id") && !shown.contains("0123456789abcdef"),
        "{shown}"
    );
    assert!(!schema().to_string().contains("$v=19"));
}
