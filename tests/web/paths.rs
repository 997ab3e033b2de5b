//! Paths: what of a rule they choose, and that everybody sees the same one.

use std::io::Write as _;

use crate::rig::{Ask, Frames, Http, Origin, Shop, access_line_of, read, send};
use crate::support::raw;

/// The shop with a pool `admin` for what begins with `/admin`.
fn with_admin(origin: &Origin, admin: &Origin) -> Shop {
    Shop::of(origin)
        .path(&["/admin*"], "pool = \"admin\"\n")
        .table(&format!("[pool.admin]\ntargets = [{}]", admin.quoted()))
}

#[test]
fn the_first_path_in_the_list_that_matches_holds_in_either_case() {
    let (site, images, exact) = (Origin::named("site"), Origin::named("images"), Origin::named("exact"));
    let gateway = Shop::of(&site)
        .path(&["/exact/", "/Only"], "pool = \"exact\"")
        .path(&["/images/*", "/img*"], "pool = \"images\"")
        .path(&["/images/special/*"], "pool = \"exact\"")
        .table(&format!(
            "[pool.images]\ntargets = [{}]\n[pool.exact]\ntargets = [{}]",
            images.quoted(),
            exact.quoted()
        ))
        .start();
    for http in Http::BOTH {
        let mut browser = http.connect(&gateway);
        for (path, expected) in [
            ("/images/a.png", "images"),
            ("/IMAGES/A.png", "images"),
            ("/images/special/x", "images"),
            ("/img", "images"),
            ("/imgs/x", "images"),
            ("/images", "site"),
            ("/images?/images/", "site"),
            ("/exact/", "exact"),
            ("/EXACT/", "exact"),
            ("/exact", "site"),
            ("/exact/more", "site"),
            ("/only", "exact"),
            ("/only?x=1", "exact"),
            ("/", "site"),
            ("/x?y=/images/", "site"),
        ] {
            assert_eq!(
                browser.ask(&Ask::get("shop.test", path)).text(),
                expected,
                "{http:?} {path}"
            );
        }
    }
    assert_eq!(
        images.seen()[1].target(),
        "/IMAGES/A.png",
        "the path itself keeps its letters"
    );
}

#[test]
fn a_path_is_made_plain_once_and_the_target_gets_what_the_rule_saw() {
    let origin = Origin::named("site");
    let gateway = Shop::of(&origin).start();
    for (sent, expected) in [
        ("/", "/"),
        ("/a/b", "/a/b"),
        ("/a//b", "/a/b"),
        ("//a///b//", "/a/b/"),
        ("/a/./b", "/a/b"),
        ("/a/b/../c", "/a/c"),
        ("/a/b/..", "/a/"),
        ("/a/%2e%2E/c", "/c"),
        ("/a/.%2e/c", "/c"),
        ("/%2e/a", "/a"),
        ("/....//admin", "/..../admin"),
        ("/%41%62c", "/Abc"),
        ("/x%7ey%2D%5F", "/x~y-_"),
        ("/a%20b", "/a%20b"),
        ("/a%e4b", "/a%E4b"),
        ("/v1/te%2Fst/x", "/v1/te%2Fst/x"),
        ("/a;b=c/d,e", "/a;b=c/d,e"),
        ("/100%25", "/100%25"),
        ("/a?x=../../y&z=%2e%2e//\\", "/a?x=../../y&z=%2e%2e//\\"),
        ("/a?", "/a?"),
        ("/a?b?c", "/a?b?c"),
    ] {
        let before = origin.seen().len();
        let answer = send(&gateway, format!("GET {sent} HTTP/1.1\r\nHost: shop.test\r\n\r\n"));
        assert_eq!(answer.status, 200, "{sent}");
        let seen = origin.wait_for(before + 1).pop().unwrap();
        assert_eq!(seen.target(), expected, "{sent}");
        assert_eq!(seen.field("x-original-url"), sent);
    }
}

#[test]
fn a_path_that_cannot_be_made_safe_is_refused() {
    let origin = Origin::named("site");
    let gateway = Shop::of(&origin).start();
    for path in [
        "/..",
        "/../x",
        "/a/../../x",
        "/%2e%2e/x",
        "/public/..%2fadmin",
        "/public/..%2Fadmin",
        "/public%2f..%2fadmin",
        "/a/..%5cadmin",
        "/a\\..\\admin",
        "/a%5c..%5cadmin",
        "/%252e%252e/admin",
        "/a/%252e%252e%252fadmin",
        "/%25252e%25252e/admin",
        "/a%00b",
        "/a%0d%0aX:y",
        "/a%01",
        "/a%7f",
        "/a%",
        "/a%2",
        "/a%zz",
        "/%u002e",
        "/a#b",
    ] {
        let answer = send(&gateway, format!("GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n"));
        assert_eq!(answer.status, 400, "{path}");
    }
    // Letters that are no ASCII.
    let answer = send(&gateway, "GET /ä HTTP/1.1\r\nHost: shop.test\r\n\r\n".as_bytes());
    assert_eq!(answer.status, 400);
    assert!(origin.seen().is_empty(), "{:?}", origin.seen());
    let line = access_line_of(&gateway, "/public/..%2fadmin");
    assert_eq!(line["error_info"], "unsafe_path");
}

#[test]
fn over_http_2_a_path_is_judged_in_the_same_way() {
    let origin = Origin::named("site");
    let gateway = Shop::of(&origin).start();
    let mut frames = Frames::connect(&gateway);
    let end = Frames::END_STREAM | Frames::END_HEADERS;
    for (place, (sent, expected)) in [
        ("/a//b/./c/../%41?x=..", Some("/a/b/A?x=..")),
        ("/a/%2e%2e/c", Some("/c")),
        ("/v1/te%2Fst/x", Some("/v1/te%2Fst/x")),
        ("/a?x=../../y&z=%2e%2e//\\", Some("/a?x=../../y&z=%2e%2e//\\")),
        ("/..", None),
        ("/a/..%5cadmin", None),
        ("/a%00b", None),
        ("/a%0d%0aX:y", None),
        ("/a%", None),
        ("/public/..%2fadmin", None),
        ("/a\\..\\admin", None),
        ("/%252e%252e/x", None),
        ("/../x", None),
    ]
    .into_iter()
    .enumerate()
    {
        let id = u32::try_from(place).unwrap() * 2 + 1;
        let before = origin.seen().len();
        frames
            .write(
                Frames::HEADERS,
                end,
                id,
                &Frames::block(&Frames::get("shop.test", sent)),
            )
            .unwrap();
        let head = frames.read_until(Frames::HEADERS);
        let head = head.unwrap_or_else(|| panic!("no answer to {sent}"));
        assert_eq!(head.id, id);
        match expected {
            Some(expected) => assert_eq!(origin.wait_for(before + 1).pop().unwrap().target(), expected, "{sent}"),
            // Static table: 12 is :status 400.
            None => assert_eq!((head.payload[0], origin.seen().len()), (0x80 | 12, before), "{sent}"),
        }
    }
}

#[test]
fn no_way_of_writing_a_path_gets_around_its_rule() {
    let (site, admin) = (Origin::named("site"), Origin::named("admin"));
    let gateway = with_admin(&site, &admin).start();
    for path in [
        "/admin",
        "/Admin/",
        "/ADMIN/x",
        "/%61dmin",
        "/%41DMIN",
        "//admin",
        "/./admin",
        "/x/../admin",
        "/public/%2e%2e/admin",
        "/x/%2E%2e//admin",
        "/x%2f..%2fadmin",
        "/public/..%2fadmin",
        "/..%2fadmin",
        "/a\\..\\admin",
        "/\\admin",
        "/%5cadmin",
        "/%2fadmin",
        "/%252e%252e/admin",
        "/admin%00",
        "/admin/..;/admin",
        "/admin;x",
        "/admin?x",
    ] {
        let mut stream = raw::tls(&gateway);
        write!(stream, "GET {path} HTTP/1.1\r\nHost: shop.test\r\n\r\n").unwrap();
        let answer = read(&mut stream);
        let is_kept = answer.status == 400 || answer.text() == "admin";
        // What a rule does not take for /admin, an application must not be able to take for it either.
        let last = site.seen().last().map(|seen| seen.target().to_ascii_lowercase());
        assert!(
            is_kept || path == "/%2fadmin",
            "{path} reached the other pool as {last:?}"
        );
    }
}

#[test]
fn a_method_that_is_never_passed_on_is_405() {
    let origin = Origin::named("site");
    let gateway = Shop::of(&origin).start();
    for http in Http::BOTH {
        let answer = http.connect(&gateway).ask(&Ask::new("TRACE", "shop.test", "/trace"));
        assert_eq!(answer.status, 405, "{http:?}");
        assert!(answer.field("allow").contains("GET"));
    }
    let answer = send(
        &gateway,
        "CONNECT shop.test:443 HTTP/1.1\r\nHost: shop.test:443\r\n\r\n",
    );
    assert!([400, 405].contains(&answer.status), "{answer:?}");
    assert_eq!(access_line_of(&gateway, "/trace")["error_info"], "invalid_method");
    // Others pass, whether they are known here or not.
    for method in ["OPTIONS", "PROPFIND", "PATCH", "DELETE", "M-SEARCH"] {
        for http in Http::BOTH {
            let answer = http.connect(&gateway).ask(&Ask::new(method, "shop.test", "/"));
            assert_eq!((answer.status, origin.last().method()), (200, method), "{http:?}");
        }
    }
    // Of the server as a whole: whoever answers, it is no path of anybody's.
    let before = origin.seen().len();
    let answer = send(&gateway, "OPTIONS * HTTP/1.1\r\nHost: shop.test\r\n\r\n");
    assert!(answer.status < 500, "{answer:?}");
    assert!(origin.seen()[before..].iter().all(|seen| seen.target() == "*"));
}
