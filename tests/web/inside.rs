//! Names of the inside that an application lets slip.

use crate::rig::{Ask, Http, Origin, Shop};

#[test]
fn a_location_of_the_inside_becomes_one_of_the_outside() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        let own = exchange.seen().field("x-own").to_owned();
        let location = match exchange.target().as_str() {
            "/own" => format!("http://{own}/a?b=c"),
            "/own-https" => format!("https://{own}/a"),
            "/host" => "http://shop.test/a".to_owned(),
            "/foreign" => "http://elsewhere.example/a".to_owned(),
            "/relative" => "/a?b=c".to_owned(),
            "/near" => "a/b".to_owned(),
            "/scheme" => "mailto:x@y".to_owned(),
            "/prefix" => format!("http://{own}.evil.example/"),
            other => panic!("{other}"),
        };
        exchange.reply_with(302, &format!("Location: {location}\r\n"), "");
    });
    let own = origin.address.to_string();
    let gateway = Shop::of(&origin).start();
    let port = gateway.address.port();
    let outside = format!("https://shop.test:{port}");
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (path, expected) in [
            ("/own", format!("{outside}/a?b=c")),
            ("/own-https", format!("{outside}/a")),
            ("/foreign", "http://elsewhere.example/a".to_owned()),
            ("/relative", "/a?b=c".to_owned()),
            ("/near", "a/b".to_owned()),
            ("/scheme", "mailto:x@y".to_owned()),
            ("/prefix", format!("http://{own}.evil.example/")),
        ] {
            let ask = Ask::get(&format!("shop.test:{port}"), path).with("x-own", &own);
            assert_eq!(browser.ask(&ask).field("location"), expected, "{http:?} {path}");
        }
    }
}

#[test]
fn a_path_that_an_override_made_becomes_the_clients_again() {
    let origin = Origin::new(|exchange| {
        exchange.body();
        let own = exchange.seen().field("x-own").to_owned();
        let fields = match exchange.target().as_str() {
            "/v2/path" => "Location: /v2/login?next=/v2/a\r\nSet-Cookie: s=1; Path=/v2/; HttpOnly\r\n".to_owned(),
            "/v2/url" => format!("Location: http://{own}/v2/a#b\r\nSet-Cookie: s=1; Path=/\r\n"),
            "/v2/other" => "Location: /elsewhere\r\nSet-Cookie: s=1; Path=/v20\r\n".to_owned(),
            other => panic!("{other}"),
        };
        exchange.reply_with(302, &fields, "");
    });
    let own = origin.address.to_string();
    let shop = Shop::of(&origin)
        .backend("path_override = \"/v2/\"")
        .path(&["/api/*"], "pool = \"shop\"\nbackend = \"shop\"");
    let gateway = shop.start();
    let ask = |http: Http, path: &str| {
        let ask = Ask::get("shop.test", path).with("x-own", &own);
        let answer = http.connect(&gateway).ask(&ask);
        let [location, cookie] = ["location", "set-cookie"].map(|name| answer.field(name).to_owned());
        (location, cookie)
    };
    let told = |location: &str, cookie: &str| (location.to_owned(), cookie.to_owned());
    for http in Http::BOTH {
        let (location, cookie) = ask(http, "/api/path");
        assert_eq!(
            (location.as_str(), cookie.as_str()),
            ("/api/login?next=/v2/a", "s=1; Path=/api/; HttpOnly"),
            "{http:?}"
        );
        assert_eq!(
            ask(http, "/api/url"),
            told("https://shop.test/api/a#b", "s=1; Path=/"),
            "{http:?}"
        );
        assert_eq!(
            ask(http, "/api/other"),
            told("/elsewhere", "s=1; Path=/v20"),
            "{http:?}"
        );
        // Where no path of the rule matched, the override was put before the whole.
        assert_eq!(ask(http, "/path").0, "/login?next=/v2/a", "{http:?}");
    }
    shop.backend("hide_inside = false").apply(&gateway);
    assert_eq!(ask(Http::One, "/api/path").0, "/v2/login?next=/v2/a");
}

#[test]
fn a_location_stays_where_the_rule_says_so() {
    let origin = Origin::new(|exchange| {
        let own = exchange.seen().field("x-own").to_owned();
        exchange.reply_with(
            302,
            &format!("Location: http://{own}/a\r\nSet-Cookie: s=1; Domain=inside.test\r\n"),
            "",
        );
    });
    let own = origin.address.to_string();
    let gateway = Shop::of(&origin)
        .backend("hide_inside = false\nhost = \"inside.test\"")
        .start();
    let answer = Http::One
        .connect(&gateway)
        .ask(&Ask::get("shop.test", "/").with("x-own", &own));
    assert_eq!(answer.field("location"), format!("http://{own}/a"));
    assert_eq!(answer.field("set-cookie"), "s=1; Domain=inside.test");
}

#[test]
fn a_cookie_for_the_inside_becomes_one_for_the_outside_and_others_stay() {
    let origin = Origin::new(|exchange| {
        exchange.reply_with(
            200,
            "Set-Cookie: a=1; Path=/; Domain=inside.test; HttpOnly\r\nSet-Cookie: b=2; domain=.INSIDE.test\r\n\
             Set-Cookie: c=3; Domain=elsewhere.example\r\nSet-Cookie: d=\"Domain=inside.test\"; Path=/x\r\nSet-Cookie: e=5\r\n",
            "",
        );
    });
    let gateway = Shop::of(&origin).backend("host = \"inside.test\"").start();
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::get("shop.test", "/"));
        assert_eq!(origin.last().field("host"), "inside.test");
        let cookies = answer.fields("set-cookie");
        assert_eq!(cookies.len(), 5, "{cookies:?}");
        for outer in &cookies[..2] {
            let lower = outer.to_ascii_lowercase();
            assert!(!lower.contains("inside.test"), "{http:?} {outer}");
            assert!(
                lower.contains("domain=shop.test") || !lower.contains("domain="),
                "{outer}"
            );
        }
        assert!(
            cookies[0].contains("HttpOnly") && cookies[0].contains("Path=/"),
            "{}",
            cookies[0]
        );
        assert_eq!(
            cookies[2..],
            [
                "c=3; Domain=elsewhere.example",
                "d=\"Domain=inside.test\"; Path=/x",
                "e=5"
            ]
        );
    }
}
