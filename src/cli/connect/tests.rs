use std::ffi::OsString;
use std::path::Path;

use clap::Parser;

use super::*;
use crate::client::Unattended;
use crate::client::model::Lab;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    connect: Connect,
}

fn parse(words: &[&str]) -> Result<Connect, clap::Error> {
    Line::try_parse_from(std::iter::once(&"connect").chain(words)).map(|line| line.connect)
}

/// Runs the command against a lab, as `ann` with this password.
async fn run(lab: &Lab, password: &str, words: &[&str]) -> Exit {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("password");
    std::fs::write(&file, password).unwrap();
    run_with(&lab.endpoint().to_string(), &lab.thumbprint().to_hex(), &file, words).await
}

async fn run_with(gateway: &str, thumbprint: &str, password_file: &Path, words: &[&str]) -> Exit {
    let mut line: Vec<OsString> = ["connect", gateway, "--user", "ann", "--thumbprint", thumbprint]
        .map(OsString::from)
        .into();
    line.extend(["--password-file".into(), password_file.into()]);
    line.extend(words.iter().map(OsString::from));
    let connect = Line::try_parse_from(line)
        .unwrap_or_else(|error| panic!("{error}"))
        .connect;
    connect
        // Nobody is asked, whether the tests run on a terminal or not.
        .run_asking(
            Term {
                colour: false,
                utf8: true,
            },
            &mut Unattended,
        )
        .await
}

#[test]
fn ways_to_use_the_desktop_exclude_each_other() {
    for words in [
        &["gw", "--list", "--stdio"][..],
        &["gw", "--stdio", "-L", "127.0.0.1:0"],
        &["gw", "--stdio", "--", "ssh"],
        &["gw", "-L", "127.0.0.1:0", "--", "ssh"],
        &["gw", "--list", "--desktop", "x"],
        &["gw", "--preconnection"],
        &["gw", "-d", "x", "--preconnection", "--stdio"],
        &["gw", "-d", "x", "--preconnection", "--", "xfreerdp"],
        &["gw", "--json"],
        &["gw", "--ca", "x", "--accept-new"],
        &["gw", "--thumbprint", "ab"],
        &["gw:0"],
        &["https://gw"],
        &[],
    ] {
        assert!(parse(words).is_err(), "{words:?}");
    }
    let all = parse(&[
        "gw",
        "-u",
        "ann",
        "-d",
        "shell",
        "--protocol",
        "SSH",
        "--",
        "ssh",
        "-p",
        "{port}",
        "{host}",
    ])
    .unwrap();
    assert_eq!(all.command, ["ssh", "-p", "{port}", "{host}"]);
    assert!(parse(&["gw:8443", "--stdio", "--accept-new"]).unwrap().accept_new);
}

#[test]
fn a_password_has_no_place_on_the_command_line() {
    assert!(parse(&["gw", "--password", "plum"]).is_err());
    let refused = parse(&["gw", "--thumbprint", &"ab".repeat(20)]).unwrap_err();
    assert!(
        refused.to_string().contains("SHA-1 thumbprint can be forged"),
        "{refused}"
    );
}

#[tokio::test]
async fn the_end_tells_a_script_what_happened() {
    let lab = Lab::new().await;
    assert_eq!(run(&lab, "plum", &["--list"]).await, Exit::Done);
    assert!(lab.is_logged_out());
    assert_eq!(run(&lab, "plum", &["--list", "--json"]).await, Exit::Done);
    assert_eq!(run(&lab, "pear", &["--list"]).await, Exit::NotAllowed);
    assert_eq!(run(&lab, "", &["--list"]).await, Exit::Usage, "an empty password file");
    assert_eq!(run(&lab, "plum", &["--desktop", "none"]).await, Exit::NotAllowed);
    assert!(lab.is_logged_out(), "also after a fault");
    let desktop = ["--desktop", "shell", "--protocol", "RDP", "--stdio"];
    assert_eq!(run(&lab, "plum", &desktop).await, Exit::Failed);

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, "plum").unwrap();
    let other = "ab".repeat(32);
    let refused = run_with(&lab.endpoint().to_string(), &other, file.path(), &["--list"]).await;
    assert_eq!(refused, Exit::NotAllowed);
    let nowhere = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .to_string();
    assert_eq!(
        run_with(&nowhere, &other, file.path(), &["--list"]).await,
        Exit::Unreachable
    );
}

#[tokio::test]
async fn a_taken_address_is_told_before_anything_else() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let file = tempfile::NamedTempFile::new().unwrap();
    let exit = run_with("192.0.2.1", &"ab".repeat(32), file.path(), &["-L", &address]).await;
    assert_eq!(exit, Exit::Failed);
}

#[tokio::test]
async fn a_command_is_run_with_the_address_and_its_end_is_the_end() {
    for (command, expected) in [
        (
            &["sh", "-c", "test {host} = 127.0.0.1 && test {port} -gt 0"][..],
            Exit::Done,
        ),
        (&["sh", "-c", "exit 3"], Exit::Failed),
        (&["/no/such/program"], Exit::Failed),
    ] {
        let lab = Lab::new().await;
        let words = [&["--desktop", "shell", "--"][..], command].concat();
        assert_eq!(run(&lab, "plum", &words).await, expected, "{command:?}");
        assert!(lab.is_logged_out());
    }
}

#[tokio::test]
async fn a_desktop_is_picked_by_number_name_or_id() {
    use crate::client::model::Script;
    let desktop = |id: &str, name: &str| Desktop {
        id: id.into(),
        name: name.into(),
        ..Desktop::default()
    };
    let desktops = [desktop("cn=a", "One"), desktop("cn=b", "Two")];
    let question = || Question::Desktop {
        offered: vec!["One  ".into(), "Two  ".into()],
    };
    for (answer, expected) in [("2", "cn=b"), ("one", "cn=a"), ("cn=b", "cn=b")] {
        let mut script = Script::new([(question(), answer)]);
        assert_eq!(pick(&desktops, None, &mut script).await.unwrap().id, expected);
    }
    for wrong in ["0", "3", "none"] {
        let mut script = Script::new([(question(), wrong)]);
        assert!(pick(&desktops, None, &mut script).await.is_err());
    }
    let nobody = pick(&desktops, None, &mut Script::default()).await.unwrap_err();
    assert!(nobody.to_string().contains("--desktop"), "{nobody}");
}
