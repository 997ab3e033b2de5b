//! curl: the control protocol without a client of ours, and the health check.

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use super::connect::sessions;
use super::peer::tool;
use super::sshd::free_address;
use crate::support::raw::{element, message, password_message};
use crate::support::{Gateway, PASSWORD, Setup, Target};

#[test]
fn the_control_protocol_is_spoken_from_sign_in_to_logout() {
    let desktop = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", desktop.address, "ssh"));
    let curl = Curl::at(&gateway);
    let first = curl.control(
        &[],
        "<set-locale><locale>en_US.UTF-8</locale></set-locale><get-configuration/>",
    );
    assert!(first.body.contains("<name>windows-password</name>"), "{first:?}");
    let wrong = curl.post(&[], &password_message("ann", "not it", "<get-tunnel-connection/>"));
    assert_eq!(element(&wrong.body, "result"), Some("partial"), "{wrong:?}");
    assert!(wrong.body.contains("<tunnel-connection><result>notexecuted</result>"));

    let batch = "<get-tunnel-connection/><get-desktops/>";
    let second = curl.post(&[], &password_message("ann", PASSWORD, batch));
    assert_eq!(element(&second.body, "result"), Some("ok"), "{second:?}");
    assert!(element(&second.body, "connection-id").is_some());
    assert_eq!(
        element(&second.body, "server1"),
        Some(format!("https://{}", gateway.address).as_str())
    );
    assert_eq!(element(&second.body, "id"), Some("shell"));
    assert_eq!(sessions(&gateway), 1);

    let end = curl.control(&[], "<do-logout/>");
    assert!(end.body.contains("<logout><result>ok</result>"), "{end:?}");
    assert_eq!(sessions(&gateway), 0);
    let after = curl.control(&[], "<get-desktops/>");
    assert_eq!(
        element(&after.body, "error-code"),
        Some("NOT_AUTHENTICATED"),
        "{after:?}"
    );
}

#[test]
fn a_client_that_waits_for_100_continue_gets_it_at_once() {
    let gateway = Gateway::start(&Setup::default());
    for (choice, told) in VERSIONS {
        let begun = portcullis::clock::now();
        let answer = Curl::at(&gateway).control(&[&EXPECT[..], &[choice]].concat(), "<get-configuration/>");
        assert_eq!(answer.status, "200");
        assert!(answer.trace.contains(told), "{answer:?}");
        assert!(begun.elapsed() < Duration::from_secs(10), "it waited in vain");
    }
}

#[test]
fn what_is_refused_by_its_head_is_refused_without_100_continue() {
    let gateway = Gateway::start(&Setup::default());
    let curl = Curl::at(&gateway);
    for (choice, told) in VERSIONS {
        let expect = [&EXPECT[..], &[choice]].concat();
        let too_large = curl.post(&expect, &"x".repeat(256 * 1024 + 1));
        let no_xml = curl.post(&[&expect[..], &["-H", "Content-Type: application/json"]].concat(), "{}");
        for (answer, status) in [(too_large, "413"), (no_xml, "415")] {
            assert_eq!(answer.status, status, "{answer:?}");
            assert!(!answer.trace.contains(told), "{answer:?}");
        }
    }
}

/// Whoever sends without waiting still reads why it was refused: no reset is before the answer.
#[test]
fn a_refusal_is_read_whole_by_a_client_that_sends_on() {
    let gateway = Gateway::start(&Setup::default());
    for (choice, _) in VERSIONS {
        for length in [256 * 1024 + 1, 8 * 1024 * 1024] {
            let answer = Curl::at(&gateway).post(&["-H", "Expect:", choice], &"x".repeat(length));
            assert_eq!(
                (&*answer.status, &*answer.body),
                ("413", "control messages have at most 256 KiB\n")
            );
        }
    }
}

#[test]
fn http_1_0_is_answered_with_a_length_and_may_keep_the_connection() {
    let gateway = Gateway::start(&Setup::default());
    let curl = Curl::at(&gateway);
    let answer = curl.control(&HTTP_1_0, "<get-configuration/>");
    assert!(
        answer.body.ends_with("</broker>") && answer.status == "200",
        "{answer:?}"
    );
    assert!(!answer.trace.to_lowercase().contains("transfer-encoding"), "{answer:?}");

    let favicon = curl.url("/favicon.ico");
    let keep = ["-H", "Connection: keep-alive", &favicon, &favicon];
    let twice = curl.run(&[&HTTP_1_0[..], &keep].concat(), "");
    assert!(twice.trace.contains("Re-using existing connection"), "{twice:?}");
}

#[test]
fn a_client_that_knows_http_2_is_served_it_and_any_other_http_1_1() {
    let gateway = Gateway::start(&Setup::default());
    for (choice, version) in [
        ("--no-alpn", "HTTP/1.1"),
        ("--http1.1", "HTTP/1.1"),
        ("--http2", "HTTP/2"),
    ] {
        let answer = Curl::at(&gateway).control(&[choice], "<get-configuration/>");
        assert_eq!(answer.status, "200");
        assert!(answer.trace.contains(&format!("< {version} 200")), "{answer:?}");
    }
}

#[test]
fn the_health_check_answers_get_and_head_and_says_when_the_node_is_taken_out() {
    let gateway = Gateway::start(&Setup::default());
    let curl = Curl::at(&gateway);
    let favicon = curl.url("/favicon.ico");
    let both = || [curl.run(&[&favicon], ""), curl.run(&["-I", &favicon], "")].map(|answer| answer.status);
    assert_eq!(both(), ["200", "200"]);
    for (action, status) in [("on", "503"), ("off", "200")] {
        assert!(
            gateway
                .operator(&["quiesce", action])
                .output()
                .unwrap()
                .status
                .success()
        );
        assert_eq!(both(), [status, status]);
    }
}

/// Two names of one node: the balancer's, and its own.
#[test]
fn a_client_that_is_sent_on_posts_again_at_the_nodes_own_name() {
    let address = free_address();
    let port = address.port();
    let redirects = format!("host_redirects = {{ \"gw.test:{port}\" = \"localhost:{port}\" }}\n");
    let setup = Setup::default().bind(&[&address.to_string()]).listener(&redirects);
    let gateway = Gateway::start(&setup);
    let curl = Curl::at(&gateway);
    let (resolve, url) = (
        format!("gw.test:{port}:127.0.0.1"),
        format!("https://gw.test:{port}/broker/xml"),
    );
    let sent = [
        "--resolve",
        &resolve,
        "-H",
        "Content-Type: text/xml",
        "--data-binary",
        "@-",
        &url,
    ];
    let once = curl.run(&sent, &message("<get-configuration/>"));
    assert_eq!(once.status, "307", "{once:?}");
    let followed = [&["-L", "--post301"][..], &sent].concat();
    let first = curl.run(&followed, &message("<get-configuration/>"));
    assert!(
        first.status == "200" && first.body.contains("windows-password"),
        "{first:?}"
    );
    // The cookie belongs to the own name: the client is sent on again, and comes with it.
    let second = curl.run(&followed, &password_message("ann", PASSWORD, "<get-desktops/>"));
    assert!(second.body.contains("<user-sid>ann</user-sid>"), "{second:?}");
}

/// curl with a cookie jar, that trusts the gateway's own certificate.
struct Curl<'a> {
    gateway: &'a Gateway,
    folder: TempDir,
}

/// What came of it.
#[derive(Debug)]
struct Answer {
    status: String,
    body: String,
    /// Heads of requests and answers, and curl's own words.
    trace: String,
}

impl<'a> Curl<'a> {
    fn at(gateway: &'a Gateway) -> Self {
        let folder = TempDir::new().unwrap();
        Self { gateway, folder }
    }

    fn url(&self, path: &str) -> String {
        format!("https://{}{path}", self.gateway.address)
    }

    /// Posts these operations.
    fn control(&self, arguments: &[&str], operations: &str) -> Answer {
        self.post(arguments, &message(operations))
    }

    /// Posts a body, as XML if no other type is given.
    fn post(&self, arguments: &[&str], body: &str) -> Answer {
        let url = self.url("/broker/xml");
        let typed = arguments.iter().any(|argument| argument.starts_with("Content-Type"));
        let kind: &[&str] = if typed { &[] } else { &["-H", "Content-Type: text/xml"] };
        self.run(&[arguments, kind, &["--data-binary", "@-", &url]].concat(), body)
    }

    fn run(&self, arguments: &[&str], input: &str) -> Answer {
        let jar = self.folder.path().join("jar");
        let mut curl = tool("curl");
        curl.args(["--no-progress-meter", "-v", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.gateway.chain());
        curl.arg("--cookie")
            .arg(&jar)
            .arg("--cookie-jar")
            .arg(&jar)
            .args(arguments);
        let curl = curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut curl = curl.spawn().unwrap();
        let mut stdin = curl.stdin.take().unwrap();
        let input = input.to_owned();
        // curl may end without having read all of it.
        let writing = std::thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let output = curl.wait_with_output().unwrap();
        writing.join().unwrap();
        let text = |octets: &[u8]| String::from_utf8_lossy(octets).into_owned();
        let (stdout, trace) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "curl: {}\n{trace}", output.status);
        let (body, status) = stdout.rsplit_once('\n').unwrap();
        Answer {
            status: status.to_owned(),
            body: body.to_owned(),
            trace,
        }
    }
}

/// curl then holds the body until it is asked for it, or this long.
const EXPECT: [&str; 4] = ["-H", "Expect: 100-continue", "--expect100-timeout", "15"];

/// How each version of HTTP is asked for, and how it says `100 Continue`.
const VERSIONS: [(&str, &str); 2] = [("--http1.1", "< HTTP/1.1 100 Continue"), ("--http2", "< HTTP/2 100")];

/// By name (ALPN), HTTP/1.0 cannot be agreed on.
const HTTP_1_0: [&str; 2] = ["--http1.0", "--no-alpn"];
