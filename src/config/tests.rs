//! The configuration as a whole: golden faults, the reference file, mutations of it, and secrets.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::environment::{Contents, Environment};
use super::{Config, Faults, Problem, Severity, parse};

mod mutation;
mod published;
mod reference;
mod secrets;

/// A world of the test's own making.
#[derive(Default)]
struct World {
    variables: BTreeMap<String, String>,
    files: BTreeMap<PathBuf, (Vec<u8>, u32)>,
}

impl World {
    /// A world with the files of the reference configuration.
    fn of_reference() -> Self {
        Self::default()
            .file("/etc/portcullis/main.crt", "chain", 0o644)
            .file("/etc/portcullis/main.key", "key", 0o640)
            .file("/etc/portcullis/main.ocsp", "response", 0o644)
            .file("/etc/portcullis/fleet-ca.crt", "authority", 0o644)
            .file("/etc/portcullis/agents-ca.crt", "authority", 0o644)
            .file("/etc/portcullis/inside-ca.crt", "authority", 0o644)
            .file("/etc/portcullis/502.html", "page", 0o644)
            .file("/etc/portcullis/shop-502.html", "page", 0o644)
            .file("/etc/portcullis/public-404.html", "page", 0o644)
            .file(
                "/etc/portcullis/affinity.key",
                "0123456789abcdef0123456789abcdef\n",
                0o600,
            )
            .file(
                "/etc/portcullis/grants.key",
                "0123456789abcdef0123456789abcdef\n",
                0o600,
            )
            .file(
                "/etc/portcullis/recognition.key",
                "0123456789abcdef0123456789abcdef\n",
                0o600,
            )
    }

    fn file(mut self, path: &str, contents: impl AsRef<[u8]>, mode: u32) -> Self {
        self.files
            .insert(PathBuf::from(path), (contents.as_ref().to_vec(), mode));
        self
    }

    fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.insert(name.to_owned(), value.to_owned());
        self
    }
}

impl Environment for World {
    fn variable(&self, name: &str) -> Option<Zeroizing<String>> {
        self.variables.get(name).cloned().map(Zeroizing::new)
    }

    fn read(&self, path: &Path, limit: u64) -> io::Result<Contents> {
        let (bytes, mode) = self.files.get(path).ok_or_else(|| io::Error::from_raw_os_error(2))?;
        let length = bytes.len().min(usize::try_from(limit).unwrap());
        Ok(Contents {
            bytes: Zeroizing::new(bytes[..length].to_vec()),
            mode: *mode,
        })
    }
}

fn checked(text: &str) -> Result<(Config, Faults), Faults> {
    parse(text, Path::new("gw.toml"), &World::of_reference())
}

/// The faults of a text, valid or not, one a line.
fn faults_of(text: &str) -> Vec<String> {
    let faults = match checked(text) {
        Ok((_, warnings)) => warnings,
        Err(faults) => faults,
    };
    faults.iter().map(super::Fault::words).collect()
}

/// A whole valid configuration, to be followed by further tables.
const SMALL: &str = r#"
[node]
name = "gw-1"
[listener.public]
bind = ["0.0.0.0:443"]
certificates = ["main"]
[certificate.main]
chain = "/etc/portcullis/main.crt"
key = "/etc/portcullis/main.key"
"#;

const HASH: &str = "$argon2id$v=19$m=19456,t=2,p=1$c2FsdHNhbHRzYWx0c2FsdA$MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI";

fn with_ann(rest: &str) -> String {
    format!("{SMALL}\n[directory.user.ann]\npassword_hash = \"{HASH}\"\n{rest}")
}

#[track_caller]
fn golden(name: &str, faults: &Faults) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/config/tests")
        .join(name);
    let actual = format!("{faults}{}\n", faults.summary());
    let wanted = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(actual == wanted, "{} should hold:\n{actual}", file.display());
}

#[test]
fn every_fault_of_a_file_is_named_at_once() {
    let faults = checked(include_str!("tests/faults.toml")).unwrap_err();
    let kinds: std::collections::BTreeSet<_> = faults.iter().map(|fault| fault.problem.code()).collect();
    assert!(kinds.len() >= 20, "{kinds:?}");
    golden("faults.txt", &faults);
}

#[test]
fn every_line_that_is_no_toml_is_named_at_once() {
    golden("syntax.txt", &checked(include_str!("tests/syntax.toml")).unwrap_err());
}

#[test]
fn a_setting_that_stands_twice_hides_no_other_fault() {
    let text = format!("{SMALL}[log]\nlevel = \"info\"\nlevel = \"warn\"\nformt = \"json\"\n");
    assert_eq!(
        faults_of(&text)[1..],
        [
            "this setting or table is there a second time. Remove one of the two.",
            "log.formt: no such setting. Did you mean format?"
        ]
    );
}

#[test]
fn an_empty_file_lacks_what_is_mandatory() {
    assert_eq!(
        faults_of(""),
        [
            "certificate: is missing. Write [certificate.NAME].",
            "listener: is missing. Write [listener.NAME].",
            "node: is missing. Write [node] with name = \"gw-1\".",
            "directory: there is no user, so nobody can sign in. Add [directory.user.NAME], or set session_gateway = false \
             in every listener.",
        ]
    );
}

#[test]
fn what_went_for_a_fault_causes_no_further_ones() {
    let text = r#"
        [node]
        name = "gw-1"
        [listener.public]
        bind = ["0.0.0.0:443"]
        certificates = ["main", "extra"]
        [certificate.main]
        chain = "/etc/portcullis/main.crt"
        key = 5
        [certificate.extra]
        chian = "/etc/portcullis/main.crt"
        key = "/etc/portcullis/main.key"
        [directory.user.ann]
        password_hash = 5
        groups = ["design", 7]
        [directory.user.bob]
        pasword_hash = ""
        [directory.desktop.web]
        address = 5
        protocols = {}
        users = ["ann", "bob"]
        groups = ["desing"]
    "#;
    let codes: Vec<_> = checked(text)
        .unwrap_err()
        .iter()
        .map(|fault| format!("{} {}", fault.path, fault.problem.code()))
        .collect();
    assert_eq!(
        codes,
        [
            "certificate.main.key wrong_type",
            "certificate.extra.chain missing",
            "certificate.extra.chian unknown_setting",
            "directory.user.ann.password_hash wrong_type",
            "directory.user.ann.groups[1] wrong_type",
            "directory.user.bob.password_hash missing",
            "directory.user.bob.pasword_hash unknown_setting",
            "directory.desktop.web.address wrong_type",
            "directory.desktop.web.protocols bad_length",
        ]
    );
}

#[test]
fn a_table_that_is_none_is_the_only_fault() {
    let text = with_ann("").replace("[certificate.main]", "[health]\n[certificates]");
    let codes: Vec<_> = checked(&text)
        .unwrap_err()
        .iter()
        .map(|fault| format!("{} {}", fault.path, fault.problem.code()))
        .collect();
    assert_eq!(
        codes,
        [
            "certificate missing",
            "certificates unknown_setting",
            "directory.user.ann no_desktop"
        ]
    );
}

#[test]
fn a_megabyte_of_faults_on_one_line_is_counted() {
    let text = format!("{SMALL}[health]\nbind = [{}]\n", "1,".repeat(500_000));
    let faults = checked(&text).unwrap_err();
    assert!(faults.to_string().ends_with(" more are not shown.\n"));
}

#[test]
fn warnings_leave_a_configuration_valid() {
    let (config, warnings) = checked(&with_ann("")).unwrap();
    assert_eq!(config.directory.users.len(), 1);
    assert!(!warnings.has_errors());
    let words: Vec<_> = warnings.iter().map(super::Fault::words).collect();
    assert_eq!(
        words,
        ["directory.user.ann: is entitled to no desktop. Name the user, or one of the user's groups, in a desktop."]
    );
    assert_eq!(
        warnings.iter().next().map(|fault| fault.severity),
        Some(Severity::Warning)
    );
}

#[test]
fn a_hash_of_another_cost_than_the_others_is_warned_of() {
    let user = |name: &str, cost: &str, lines: &str| {
        let hash = format!("$argon2id$v=19${cost}$cG9ydGN1bGxpcy1zYWx0$h1gvFaspW1nL7eoKOHdjtJ/yblQQuvpl1qRMO2GWaVI");
        format!("[directory.user.{name}]\npassword_hash = \"{hash}\"\n{lines}")
    };
    let (usual, other) = ("m=19456,t=2,p=1", "m=65536,t=3,p=1");
    let users = [
        user("Ann", usual, ""),
        user("Ben", other, ""),
        user("Cora", usual, ""),
        user("Dan", other, "disabled = true\n"),
    ];
    let (_, warnings) = checked(&format!("{SMALL}{}", users.concat())).unwrap();
    let words: Vec<_> = warnings.iter().map(super::Fault::words).collect();
    let warned: Vec<_> = words.iter().filter(|words| words.contains("cost")).collect();
    assert_eq!(
        warned,
        [
            "directory.user.Ben.password_hash: this password hash costs m=65536 KiB, t=3, p=1, most others m=19456 KiB, \
             t=2, p=1: the time of a sign-in tells that the user exists. Give all users hashes of one cost; portcullis \
             hash-password makes them."
        ]
    );
}

#[test]
fn who_may_use_what_is_seen_through_groups_and_case() {
    let rest = r#"
        groups = ["design"]
        [directory.user.Bob]
        password_hash = "HASH"
        [directory.desktop.a]
        address = "10.0.0.5"
        protocols = { ssh = 22 }
        groups = ["design", "sales"]
        [directory.desktop.b]
        address = "10.0.0.6"
        protocols = { ssh = 22 }
        users = ["bob"]
        [directory.desktop.c]
        address = "10.0.0.7"
        protocols = { ssh = 22 }
        [certificate.spare]
        chain = "/etc/portcullis/main.crt"
        key = "/etc/portcullis/main.key"
    "#;
    assert_eq!(
        faults_of(&with_ann(rest).replace("HASH", HASH)),
        [
            "directory.desktop.a.groups[1]: no user is in group \"sales\". Put users into it, or remove it here.",
            "directory.desktop.c: nobody is entitled to it. Name users or groups.",
            "certificate.spare: no listener serves it. Name it in a listener's certificates, or remove it.",
        ]
    );
}

#[test]
fn the_protocol_written_first_is_the_default() {
    let rest = r#"
        [directory.desktop.web]
        address = "[fd00::5]"
        protocols = { ssh = 2222, rdp = 3389 }
        users = ["ANN"]
    "#;
    let (config, warnings) = checked(&with_ann(rest)).unwrap();
    assert!(warnings.is_empty(), "{warnings}");
    let desktop = config.directory.desktops.values().next().unwrap();
    let protocols: Vec<_> = desktop.protocols.iter().map(|(is, at)| format!("{is} {at}")).collect();
    assert_eq!(protocols, ["SSH [fd00::5]:2222", "RDP [fd00::5]:3389"]);
    assert_eq!(desktop.name, "web");
    assert_eq!(desktop.users[0].as_str(), "ann");
}

#[test]
fn a_default_gives_way_to_a_narrower_bound_but_a_written_one_is_at_fault() {
    let (config, _) = checked(&with_ann("[session]\nmax = 5\n[limits]\nconnections = 100\n")).unwrap();
    assert_eq!(
        (config.session.per_user, config.limits.connections_per_source),
        (5, 100)
    );
    let faults = faults_of(&with_ann("[session]\nmax = 5\nper_user = 6\n"));
    assert_eq!(
        faults[1],
        "session.per_user: 6 is more than session.max (5). Lower this one, or raise that one."
    );
}

#[test]
fn what_is_for_operators_and_balancers_is_not_open_to_all_by_oversight() {
    let open = "[admin]\nbind = [\"0.0.0.0:9443\"]\n[quiesce]\nanswer = \"agent\"\nagent = [\"[::]:9442\"]\n";
    let faults = faults_of(&with_ann(open));
    assert!(
        faults.contains(
            &"admin.bind[0]: 0.0.0.0:9443 is every address of this node, that on the Internet side too. Name management \
              addresses, or allow it with admin.allow_any_address = true."
                .to_owned()
        ) && faults.iter().any(|fault| fault.starts_with("quiesce.agent[0]: [::]:9442 is every address")),
        "{faults:?}"
    );
    let on_purpose = open
        .replace("9443\"]", "9443\"]\nallow_any_address = true")
        .replace("9442\"]", "9442\"]\nagent_from = [\"10.0.0.5\"]");
    assert!(checked(&with_ann(&on_purpose)).is_ok());
    let faults = faults_of(&with_ann("[quiesce]\nanswer = \"agent\"\n"));
    let is_told = faults
        .iter()
        .any(|fault| fault.starts_with("quiesce.agent: is missing"));
    assert!(is_told, "{faults:?}");
}

#[test]
fn one_user_in_two_spellings_is_a_fault() {
    let rest = format!("[directory.user.ANN]\npassword_hash = \"{HASH}\"\n");
    let faults = checked(&with_ann(&rest)).unwrap_err();
    assert!(
        faults
            .iter()
            .any(|fault| matches!(fault.problem, Problem::SameUser { .. })),
        "{faults}"
    );
}

#[test]
fn relative_paths_start_at_the_folder_of_the_file() {
    let text = with_ann("").replace("/etc/portcullis/main", "main");
    let parsed = parse(&text, Path::new("/etc/portcullis/gw.toml"), &World::of_reference());
    let (config, _) = parsed.unwrap();
    assert_eq!(config.certificates["main"].chain, Path::new("/etc/portcullis/main.crt"));
}

#[test]
fn endless_faults_are_counted_and_errors_come_first() {
    let unknown: String = (0..2_000).map(|number| format!("x{number} = 1\n")).collect();
    let faults = checked(&format!("{SMALL}[health]\n{unknown}")).unwrap_err();
    assert_eq!(faults.iter().count(), 500);
    assert!(faults.iter().all(|fault| fault.severity == Severity::Error));
    assert!(faults.to_string().ends_with("1501 more are not shown.\n"), "{faults}");
}

#[test]
fn programs_read_the_same_faults() {
    let faults = checked(&format!("{SMALL}[log]\nlevle = 5\n")).unwrap_err();
    let json = faults.json();
    assert_eq!(json["schema"], "portcullis.check.v1");
    assert_eq!(
        (&json["valid"], &json["errors"], &json["warnings"]),
        (&false.into(), &1.into(), &1.into())
    );
    let fault = &json["faults"][1];
    assert_eq!(fault["path"], "log.levle");
    assert_eq!((&fault["line"], &fault["column"]), (&11.into(), &1.into()));
    assert_eq!(
        (&fault["severity"], &fault["code"]),
        (&"error".into(), &"unknown_setting".into())
    );
    assert_eq!(
        (&fault["what"], &fault["remedy"]),
        (&"no such setting".into(), &"Did you mean level?".into())
    );
}

#[test]
fn a_file_that_is_none_is_a_fault_without_a_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("gw.toml");
    let faults = super::load(&file).unwrap_err();
    assert_eq!(
        faults.to_string(),
        format!(
            "{}  error    cannot be read: no such file or directory. Give the path of a file that this user can read.\n",
            file.display()
        )
    );
    std::fs::write(&file, vec![b'#'; 8 * 1024 * 1024 + 1]).unwrap();
    assert_eq!(
        super::load(&file).unwrap_err().iter().next().unwrap().problem,
        Problem::TooLong { limit: 8 * 1024 * 1024 }
    );
    std::fs::write(&file, b"a = 1\nb = \"\xff\"\n").unwrap();
    let faults = super::load(&file).unwrap_err();
    assert_eq!(
        faults.to_string().trim_start_matches(&file.display().to_string()),
        ":2:6  error    this is no UTF-8 text. Save the file as UTF-8.\n"
    );
}
