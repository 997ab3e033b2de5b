//! Forward authentication: who is asked, what they are told, and whose answer the client gets.

use crate::rig::{Ask, Http, Origin, Shop, access_line};

/// Says yes to whoever has the cookie `session=good`, sends others to the sign-in, and wants no `session=bad`.
fn service() -> Origin {
    Origin::new(|exchange| {
        let seen = exchange.seen();
        let cookies = seen.fields("cookie").join("; ");
        if cookies.contains("session=good") {
            exchange.reply_with(
                200,
                "X-User: ann\r\nX-Groups: a\r\nX-Groups: b\r\nX-Secret: inside\r\nSet-Cookie: auth=1\r\n",
                "yes",
            );
        } else if cookies.contains("session=bad") {
            exchange.reply_with(403, "X-Why: bad\r\n", "go away");
        } else {
            exchange.reply_with(
                302,
                "Location: https://login.example/?back\r\nSet-Cookie: csrf=1; HttpOnly\r\n",
                "",
            );
        }
    })
}

fn shop(origin: &Origin, service: &str) -> Shop {
    Shop::of(origin)
        .rule(
            "authentication = { pool = \"service\", path = \"/verify\", copy = [\"X-User\", \"X-Groups\"], exempt = [\"/public/*\"] }",
        )
        .table(&format!("[pool.service]\ntargets = [{service}]"))
}

#[test]
fn a_request_goes_on_with_what_the_service_says_of_its_user() {
    let (origin, service) = (Origin::mirror(), service());
    let gateway = shop(&origin, &service.quoted()).start();
    for http in Http::BOTH {
        let ask = Ask::post("shop.test", "/private?x=1", "a body")
            .with("cookie", "a=b; session=good")
            .with("authorization", "Bearer t")
            .with("x-user", "root")
            .with("x-secret", "mine");
        let answer = http.connect(&gateway).ask(&ask);
        assert_eq!(answer.status, 200, "{http:?}");
        assert!(
            !answer.has("set-cookie"),
            "what the service says to nobody stays inside"
        );
        let seen = origin.last();
        assert_eq!(
            (
                seen.field("x-user"),
                seen.fields("x-groups").join(",").replace(' ', "").as_str()
            ),
            ("ann", "a,b")
        );
        assert_eq!((seen.field("x-secret"), seen.body.as_slice()), ("mine", &b"a body"[..]));
        let asked = service.last();
        assert_eq!((asked.method(), asked.target()), ("GET", "/verify"));
        assert_eq!(
            (asked.field("x-forwarded-method"), asked.field("x-forwarded-uri")),
            ("POST", "/private?x=1")
        );
        assert_eq!(
            (asked.field("x-forwarded-host"), asked.field("x-forwarded-proto")),
            ("shop.test", "https")
        );
        assert_eq!(
            (asked.field("authorization"), asked.field("cookie")),
            ("Bearer t", "a=b; session=good")
        );
        assert!(
            asked.body.is_empty() && !asked.has("x-user") && !asked.has("transfer-encoding"),
            "{}",
            asked.head
        );
    }
}

#[test]
fn whom_the_service_does_not_admit_gets_its_answer() {
    let (origin, service) = (Origin::mirror(), service());
    let gateway = shop(&origin, &service.quoted()).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let answer = browser.ask(&Ask::get("shop.test", "/private"));
        assert_eq!(
            (answer.status, answer.field("location")),
            (302, "https://login.example/?back"),
            "{http:?}"
        );
        assert_eq!(answer.field("set-cookie"), "csrf=1; HttpOnly");
        let answer = browser.ask(&Ask::post("shop.test", "/private", "x").with("cookie", "session=bad"));
        assert_eq!(
            (answer.status, answer.text(), answer.field("x-why")),
            (403, "go away", "bad")
        );
        let answer = browser.ask(&Ask::get("shop.test", "/private").with("cookie", "session=good"));
        assert_eq!(answer.status, 200, "the connection is in step");
    }
    assert_eq!(origin.seen().len(), 2);
    let line = access_line(&gateway, |line| line["http_status"] == 403);
    assert_eq!(line["error_info"], "unauthenticated", "{line}");
}

#[test]
fn exempt_paths_ask_nobody_and_still_nobody_says_who_they_are() {
    let (origin, service) = (Origin::mirror(), service());
    let gateway = shop(&origin, &service.quoted()).start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        let ask = Ask::get("shop.test", "/PUBLIC/logo.png").with("x-user", "root");
        assert_eq!(browser.ask(&ask).status, 200, "{http:?}");
        assert!(!origin.last().has("x-user"));
        for path in [
            "/public/../private",
            "/public/%2e%2e/private",
            "/public",
            "/publicity/x",
        ] {
            assert_eq!(browser.ask(&Ask::get("shop.test", path)).status, 302, "{http:?} {path}");
        }
    }
    assert_eq!((origin.seen().len(), service.seen().len()), (2, 8));
}

#[test]
fn without_the_service_nobody_is_admitted() {
    let origin = Origin::mirror();
    let gone = Origin::mirror();
    let address = gone.quoted();
    gone.stop();
    let gateway = shop(&origin, &address).start();
    for http in Http::BOTH {
        let answer = http
            .connect(&gateway)
            .ask(&Ask::get("shop.test", "/private").with("cookie", "session=good"));
        assert_eq!(answer.status, 503, "{http:?}");
        assert!(answer.has("retry-after"));
    }
    assert!(origin.seen().is_empty());
    let line = access_line(&gateway, |line| line["http_status"] == 503);
    assert_eq!(line["error_info"], "authentication_unavailable");
}
