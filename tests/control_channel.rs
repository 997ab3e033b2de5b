//! The control channel as a client on the wire meets it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that cannot go on has failed"
)]
mod support;

use std::io::Write as _;
use std::time::Duration;

use support::raw::{self, element, message, password_message, post, post_on};
use support::{Gateway, PASSWORD, Setup, Target};

#[test]
fn the_first_reply_sets_the_session_and_shows_the_screen() {
    let gateway = Gateway::start(&Setup::default());
    let answer = post(
        &gateway,
        None,
        &message("<set-locale><locale>de_DE.UTF-8</locale></set-locale><get-configuration/>"),
    );
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), ["text/xml;charset=UTF-8"]);
    let cookie = answer.header("set-cookie").join("\n");
    for attribute in ["JSESSIONID=", "Path=/", "Secure", "HttpOnly", "SameSite="] {
        assert!(cookie.contains(attribute), "{cookie}");
    }
    assert!(
        answer
            .text()
            .contains("<set-locale><result>ok</result></set-locale><configuration><result>ok</result>")
    );
    assert!(answer.text().contains("<name>windows-password</name>"));
    assert!(
        answer.head.contains("\r\nSet-Cookie: "),
        "some clients want exactly this case: {}",
        answer.head
    );
}

#[test]
fn a_whole_sign_in_in_one_batch_gives_the_token_and_the_list() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let first = post(&gateway, None, &message("<get-configuration/>"));
    let cookie = first.session_cookie().unwrap();
    let batch = "<get-tunnel-connection/><get-desktops/>";
    let second = post(&gateway, Some(&cookie), &password_message("Ann", PASSWORD, batch));
    assert_eq!(element(second.text(), "user-sid"), Some("ann"));
    assert!(element(second.text(), "connection-id").is_some_and(|id| id.len() <= 120));
    assert!(
        element(second.text(), "server1")
            .unwrap()
            .starts_with("https://localhost:")
    );
    assert!(second.text().contains("<id>shell</id>"));
    assert!(
        second
            .header("set-cookie")
            .iter()
            .any(|cookie| cookie.starts_with("com.vmware.vdi.broker.location.id="))
    );
}

/// Session fixation: whoever planted the cookie before the sign-in has nothing after it.
#[test]
fn the_cookie_changes_at_the_sign_in() {
    let gateway = Gateway::start(&Setup::default());
    let planted = post(&gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap();
    let fresh = post(&gateway, Some(&planted), &password_message("ann", PASSWORD, ""))
        .session_cookie()
        .unwrap();
    assert_ne!(planted, fresh);
    let with_old = post(&gateway, Some(&planted), &message("<get-tunnel-connection/>"));
    assert!(with_old.text().contains("NOT_AUTHENTICATED"));
    let with_new = post(&gateway, Some(&fresh), &message("<get-tunnel-connection/>"));
    assert!(with_new.text().contains("<connection-id>"));
}

#[test]
fn a_wrong_password_shows_the_screen_again_and_skips_the_rest_of_the_batch() {
    let gateway = Gateway::start(&Setup::default());
    let cookie = post(&gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap();
    for user in ["ann", "nobody"] {
        let answer = post(
            &gateway,
            Some(&cookie),
            &password_message(user, "wrong", "<get-tunnel-connection/>"),
        );
        assert!(
            answer
                .text()
                .contains("<submit-authentication><result>partial</result>"),
            "{}",
            answer.text()
        );
        assert!(answer.text().contains("Unknown user name or wrong password."));
        assert!(
            answer
                .text()
                .contains("<tunnel-connection><result>notexecuted</result></tunnel-connection>")
        );
    }
    let old_client = password_message("ann", "wrong", "<get-tunnel-connection/>").replace("15.0", "1.0");
    let cookie = post(&gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap();
    assert!(
        post(&gateway, Some(&cookie), &old_client)
            .text()
            .contains("NOT_AUTHENTICATED")
    );
}

#[test]
fn too_many_wrong_passwords_end_the_sign_in_and_then_nothing_is_checked() {
    let throttle = "[authentication]\nattempts = 2\n[authentication.throttle]\nper_user = 3\n";
    let gateway = Gateway::start(&Setup::default().section(throttle));
    let cookie = post(&gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap();
    let wrong = password_message("ann", "wrong", "");
    assert!(post(&gateway, Some(&cookie), &wrong).text().contains("partial"));
    assert!(
        post(&gateway, Some(&cookie), &wrong)
            .text()
            .contains("<error-code>AUTHENTICATION_FAILED</error-code>")
    );
    assert!(
        post(&gateway, Some(&cookie), &wrong).text().contains("partial"),
        "the session is at its start again"
    );
    let throttled = post(&gateway, Some(&cookie), &password_message("ann", PASSWORD, ""));
    assert!(
        !throttled.text().contains("<result>ok</result>"),
        "even the right one looks wrong while throttled"
    );
    gateway.wait_for("the throttle", |line| line["by"] == "user");
}

#[test]
fn the_disclaimer_comes_first_and_another_answer_gets_it_again() {
    let gateway = Gateway::start(&Setup::default().section("[authentication]\ndisclaimer = \"Be good & <kind>.\"\n"));
    let first = post(&gateway, None, &message("<get-configuration/>"));
    assert!(
        first.text().contains("<value>Be good &amp; &lt;kind&gt;.</value>"),
        "{}",
        first.text()
    );
    let cookie = first.session_cookie().unwrap();
    let out_of_step = post(&gateway, Some(&cookie), &password_message("ann", PASSWORD, ""));
    assert!(out_of_step.text().contains("<name>disclaimer</name>"));
    let accept = "<do-submit-authentication><screen><name>disclaimer</name><params><param><name>accept</name>\
                  <values><value>true</value></values></param></params></screen></do-submit-authentication>";
    let second = post(&gateway, Some(&cookie), &message(accept));
    assert!(second.text().contains("<name>windows-password</name>"));
    assert!(
        post(&gateway, Some(&cookie), &password_message("ann", PASSWORD, ""))
            .text()
            .contains("<result>ok</result>")
    );
}

#[test]
fn a_password_that_must_change_is_changed_and_survives_a_restart() {
    let setup = Setup::default().user("bob", "must_change_password = true");
    let mut gateway = Gateway::start(&setup);
    let cookie = post(&gateway, None, &message("<get-configuration/>"))
        .session_cookie()
        .unwrap();
    let due = post(&gateway, Some(&cookie), &password_message("bob", PASSWORD, ""));
    assert!(
        due.text().contains("<name>windows-password-expired</name>"),
        "{}",
        due.text()
    );
    let new = "grüße & <emoji 🦀> ]]> ende";
    let param = |name: &str, value: &str| {
        let value = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        format!("<param><name>{name}</name><values><value>{value}</value></values></param>")
    };
    let change = format!(
        "<do-submit-authentication><screen><name>windows-password-expired</name><params>{}{}{}</params></screen></do-submit-authentication>",
        param("oldPassword", PASSWORD),
        param("newPassword1", new),
        param("newPassword2", new)
    );
    let done = post(&gateway, Some(&cookie), &message(&change));
    assert!(
        done.text().contains("<submit-authentication><result>ok</result>"),
        "{}",
        done.text()
    );

    gateway.restart();
    let sign_in = |password: &str| {
        let cookie = post(&gateway, None, &message("<get-configuration/>"))
            .session_cookie()
            .unwrap();
        post(&gateway, Some(&cookie), &password_message("bob", password, ""))
            .text()
            .contains("<result>ok</result>")
    };
    assert!(!sign_in(PASSWORD));
    assert!(sign_in("<![CDATA[grüße & <emoji 🦀> ]]]]><![CDATA[> ende]]>"));
}

#[test]
fn a_version_that_is_not_spoken_is_told_so_and_the_next_lower_one_works() {
    let gateway = Gateway::start(&Setup::default());
    for version in ["16.0", "0.9", "x", ""] {
        let answer = post(
            &gateway,
            None,
            &message("<get-configuration/>").replace("15.0", version),
        );
        assert_eq!(answer.status, 200);
        assert_eq!(
            element(answer.text(), "error-code"),
            Some("UNSUPPORTED_VERSION"),
            "{version}: {}",
            answer.text()
        );
    }
    for version in ["1.0", "2.0", "4.5", "9.0", "14.0"] {
        let answer = post(
            &gateway,
            None,
            &message("<get-configuration/>").replace("15.0", version),
        );
        assert!(answer.text().contains("windows-password"), "{version}");
    }
}

#[test]
fn every_operation_is_answered_by_its_name() {
    let gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    for (request, reply) in [
        ("get-configuration", "configuration"),
        ("get-desktops", "desktops"),
        ("get-user-global-preferences", "user-global-preferences"),
        ("set-last-user-activity", "set-last-user-activity"),
        ("get-authentication-status", "authentication-status"),
        ("do-lock", "lock"),
        ("do-connect-prepare", "connect-prepare"),
        ("add-client-info", "add-client-info"),
        ("get-the-moon", "the-moon"),
    ] {
        let answer = post(&gateway, Some(&user.cookie), &message(&format!("<{request}/>")));
        assert!(
            answer.text().contains(&format!("<{reply}><result>")),
            "{request}: {}",
            answer.text()
        );
    }
    for (request, code) in [
        (
            "<reset-desktop><desktop-id>shell</desktop-id></reset-desktop>",
            "NOT_ENTITLED",
        ),
        (
            "<kill-session><session-id>nonsense</session-id></kill-session>",
            "DESKTOP_NOT_AVAILABLE",
        ),
        (
            "<rollback-checkout-desktop><desktop-id>x</desktop-id></rollback-checkout-desktop>",
            "UNSUPPORTED_OPERATION",
        ),
        ("<get-desktop-connection/>", "INVALID_REQUEST"),
        ("<get-configuration/>", "ALREADY_AUTHENTICATED"),
    ] {
        let answer = post(&gateway, Some(&user.cookie), &message(request));
        assert_eq!(
            element(answer.text(), "error-code"),
            Some(code),
            "{request}: {}",
            answer.text()
        );
    }
}

#[test]
fn a_launch_before_the_tunnel_is_up_is_told_so() {
    let target = Target::echo();
    let gateway = Gateway::start(&Setup::default().desktop("shell", target.address, "ssh"));
    let user = raw::sign_in(&gateway, "ann");
    let launch = message("<get-desktop-connection><desktop-id>shell</desktop-id></get-desktop-connection>");
    let answer = post(&gateway, Some(&user.cookie), &launch);
    assert_eq!(element(answer.text(), "error-code"), Some("DESKTOP_NOT_AVAILABLE"));
    assert_eq!(target.dialled(), 0);
}

#[test]
fn preferences_are_kept_for_the_user() {
    let mut gateway = Gateway::start(&Setup::default());
    let user = raw::sign_in(&gateway, "ann");
    let set = "<set-user-global-preferences><user-preferences><preference name=\"screenSize\">FullScreen</preference>\
               </user-preferences></set-user-global-preferences>";
    assert!(
        post(&gateway, Some(&user.cookie), &message(set))
            .text()
            .contains("<result>ok</result>")
    );
    gateway.signal("TERM");
    assert!(gateway.wait().success());
    gateway.restart();
    let user = raw::sign_in(&gateway, "ann");
    let answer = post(&gateway, Some(&user.cookie), &message("<get-user-global-preferences/>"));
    assert!(
        answer
            .text()
            .contains("<preference name=\"screenSize\">FullScreen</preference>"),
        "{}",
        answer.text()
    );
}

#[test]
fn documents_that_are_a_trap_are_refused_and_quickly() {
    let gateway = Gateway::start(&Setup::default());
    let attributes: String = (0..100_000).map(|n| format!(" a{n}=\"\"")).collect();
    let long: String = attributes.chars().take(250_000).collect();
    let long = &long[..long.rfind(" a").unwrap()];
    let traps = [
        "<!DOCTYPE broker SYSTEM \"file:///etc/passwd\"><broker version=\"1.0\"><get-configuration/></broker>"
            .to_owned(),
        "<!DOCTYPE b [<!ENTITY a \"x\">]><broker version=\"1.0\"><get-configuration/></broker>".to_owned(),
        format!("<broker version=\"1.0\"{long}><get-configuration/></broker>"),
        format!("<broker version=\"1.0\">{}", "<a>".repeat(80_000)),
        "<broker version=\"1.0\"><user-preferences></user-global-preferences></broker>".to_owned(),
    ];
    for trap in traps {
        let began = portcullis::clock::now();
        let answer = post(&gateway, None, &trap);
        assert_eq!(element(answer.text(), "error-code"), Some("INVALID_REQUEST"));
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?} for {} bytes",
            began.elapsed(),
            trap.len()
        );
    }
}

#[test]
fn encodings_that_are_declared_are_read() {
    let gateway = Gateway::start(&Setup::default());
    let text = message("<get-configuration/>").replace("?>", " encoding=\"UTF-16\"?>");
    let utf16: Vec<u8> = std::iter::once(0xFEFF)
        .chain(text.encode_utf16())
        .flat_map(u16::to_le_bytes)
        .collect();
    assert!(
        post_on(&mut raw::tls(&gateway), None, &utf16)
            .text()
            .contains("windows-password")
    );
    let latin1 = message("<set-locale><locale>ü</locale></set-locale><get-configuration/>")
        .replace("?>", " encoding=\"ISO-8859-1\"?>");
    let bytes: Vec<u8> = latin1.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
    assert!(
        post_on(&mut raw::tls(&gateway), None, &bytes)
            .text()
            .contains("windows-password")
    );
    let unknown = message("<get-configuration/>").replace("?>", " encoding=\"UTF-7\"?>");
    assert!(post(&gateway, None, &unknown).text().contains("INVALID_REQUEST"));
}

#[test]
fn a_message_over_the_limit_is_413_and_no_100_comes_before_it() {
    let gateway = Gateway::start(&Setup::default());
    let head = "POST /broker/xml HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nExpect: 100-continue\r\nContent-Length: 262145\r\n\r\n";
    assert_eq!(raw::request(&gateway, head, b"").status, 413);
    let mut stream = raw::tls(&gateway);
    let chunked =
        "POST /broker/xml HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(chunked.as_bytes()).unwrap();
    let chunk = format!("10000\r\n{}\r\n", "x".repeat(0x10000));
    for _ in 0..5 {
        stream.write_all(chunk.as_bytes()).unwrap();
    }
    assert_eq!(
        raw::read_answer(&mut stream).status,
        413,
        "the answer is read whole, without a reset before it"
    );
}

#[test]
fn an_expectation_is_met_with_100_and_the_answer_follows() {
    let gateway = Gateway::start(&Setup::default());
    let text = message("<get-configuration/>");
    let mut stream = raw::tls(&gateway);
    let head = format!(
        "POST /broker/xml HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/xml\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes()).unwrap();
    assert_eq!(raw::read_head(&mut stream).status, 100);
    stream.write_all(text.as_bytes()).unwrap();
    assert!(raw::read_answer(&mut stream).text().contains("windows-password"));
}
