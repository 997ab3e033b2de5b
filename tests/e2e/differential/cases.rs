//! The bytes, and what each does with them: ours, nginx 1.22, HAProxy 2.6.

use super::Did::{Pass, PassMany, Refuse};
use super::{Case, case};

/// A request with these lines, and `Host` in front of them.
macro_rules! request {
    ($line:literal) => {
        request!($line, "", "")
    };
    ($line:literal, $fields:literal, $body:literal) => {
        concat!($line, "\r\nHost: shop.test\r\n", $fields, "\r\n", $body)
    };
}

const HOST: &str = "they serve any host where there is only one site";
const TWICE: &str = "a second Host, or a second length, is a second reading: whoever is behind may take the other one";
const PATH: &str = "they route by one spelling and pass another one on";
const HIDDEN: &str = "a target may decode it once more than the rule did";
const FRAMING: &str = "two readings of where the body ends: they choose one, and hope that the target chooses the same";
const LINE: &str = "only CRLF ends a line (RFC 9112 section 2.2 lets us insist)";
const CODE: &str = "another status for the same";

pub(super) const ALL: [Case; 57] = [
    case(
        request!("GET /plain HTTP/1.1"),
        [Pass("/plain"), Pass("/plain"), Pass("/plain")],
        "",
    ),
    case(
        request!("GET /old HTTP/1.0"),
        [Pass("/old"), Pass("/old"), Pass("/old")],
        "",
    ),
    case(
        "GET /none HTTP/1.0\r\n\r\n",
        [Refuse(404), Pass("/none"), Pass("/none")],
        HOST,
    ),
    case(
        "GET /no-host HTTP/1.1\r\n\r\n",
        [Refuse(400), Refuse(400), Pass("/no-host")],
        "RFC 9112 section 3.2 demands it",
    ),
    case(
        request!("GET /two HTTP/1.1", "Host: shop.test\r\n", ""),
        [Refuse(400), Refuse(400), Pass("/two")],
        TWICE,
    ),
    case(
        request!("GET /two HTTP/1.1", "Host: other.test\r\n", ""),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!("GET http://shop.test/absolute HTTP/1.1"),
        [Pass("/absolute"), Pass("/absolute"), Pass("http://shop.test/absolute")],
        "targets get the form that they expect",
    ),
    case(
        "GET http://shop.test/absolute HTTP/1.1\r\nHost: other.test\r\n\r\n",
        [Refuse(400), Pass("/absolute"), Refuse(400)],
        TWICE,
    ),
    case(
        "GET /case HTTP/1.1\r\nHost: SHOP.Test:80\r\n\r\n",
        [Pass("/case"), Pass("/case"), Pass("/case")],
        "",
    ),
    case(
        "GET /v6 HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
        [Refuse(404), Pass("/v6"), Pass("/v6")],
        HOST,
    ),
    case(
        "GET /zone HTTP/1.1\r\nHost: [fe80::1%25eth0]\r\n\r\n",
        [Refuse(400), Pass("/zone"), Pass("/zone")],
        "a zone means nothing to anybody else (RFC 6874 section 3)",
    ),
    case(
        request!("GET /a//b/./c/../d HTTP/1.1"),
        [Pass("/a/b/d"), Pass("/a//b/./c/../d"), Pass("/a//b/./c/../d")],
        PATH,
    ),
    case(
        request!("GET /a/%2e%2e/b HTTP/1.1"),
        [Pass("/b"), Pass("/a/%2e%2e/b"), Pass("/a/%2e%2e/b")],
        PATH,
    ),
    case(
        request!("GET /%61bc HTTP/1.1"),
        [Pass("/abc"), Pass("/%61bc"), Pass("/%61bc")],
        PATH,
    ),
    case(
        request!("GET /a%2fb HTTP/1.1"),
        [Pass("/a%2Fb"), Pass("/a%2fb"), Pass("/a%2fb")],
        "escapes are written in capitals (RFC 3986 section 6.2.2.1)",
    ),
    case(
        request!("GET /a/..%2fb HTTP/1.1"),
        [Refuse(400), Pass("/a/..%2fb"), Pass("/a/..%2fb")],
        HIDDEN,
    ),
    case(
        request!("GET /../x HTTP/1.1"),
        [Refuse(400), Refuse(400), Pass("/../x")],
        HIDDEN,
    ),
    case(
        request!("GET /a\\b HTTP/1.1"),
        [Refuse(400), Pass("/a\\b"), Pass("/a\\b")],
        "a target may take it for a slash",
    ),
    case(
        request!("GET /a%00b HTTP/1.1"),
        [Refuse(400), Refuse(400), Pass("/a%00b")],
        "a target may end the path there",
    ),
    case(
        request!("GET /a%zz HTTP/1.1"),
        [Refuse(400), Refuse(400), Pass("/a%zz")],
        "nobody knows what it means",
    ),
    case(
        request!("GET /ä HTTP/1.1"),
        [Refuse(400), Pass("/ä"), Refuse(400)],
        "a URI is ASCII (RFC 3986 section 2)",
    ),
    case(
        request!("GET /q?a=../%2e HTTP/1.1"),
        [Pass("/q?a=../%2e"), Pass("/q?a=../%2e"), Pass("/q?a=../%2e")],
        "",
    ),
    case(
        request!("GET /f#x HTTP/1.1"),
        [Refuse(400), Pass("/f#x"), Refuse(400)],
        "a fragment is not sent (RFC 9110 section 4.2.5)",
    ),
    case(
        request!("GET /two words HTTP/1.1"),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!("TRACE /trace HTTP/1.1"),
        [Refuse(405), Refuse(405), Pass("/trace")],
        "it would show what the gateway adds",
    ),
    case(
        request!("PROPFIND /dav HTTP/1.1"),
        [Pass("/dav"), Pass("/dav"), Pass("/dav")],
        "",
    ),
    case(
        request!("GET /v HTTP/1.2"),
        [Refuse(505), Pass("/v"), Pass("/v")],
        "no such version is spoken here",
    ),
    case(
        request!("GET /v HTTP/2.0"),
        [Refuse(505), Refuse(505), Pass("/v")],
        "no such version is spoken here",
    ),
    case(
        request!("GET  /spaces HTTP/1.1"),
        [Refuse(400), Pass("/spaces"), Pass("/spaces")],
        "one space (RFC 9112 section 3)",
    ),
    case(
        request!("POST /p HTTP/1.1", "Content-Length: 4\r\n", "body"),
        [Pass("/p"), Pass("/p"), Pass("/p")],
        "",
    ),
    case(
        request!(
            "POST /p HTTP/1.1",
            "Transfer-Encoding: chunked\r\n",
            "4\r\nbody\r\n0\r\n\r\n"
        ),
        [Pass("/p"), Pass("/p"), Pass("/p")],
        "",
    ),
    case(
        request!(
            "POST /p HTTP/1.1",
            "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n"
        ),
        [Refuse(400), Refuse(400), Pass("/p")],
        FRAMING,
    ),
    case(
        request!(
            "POST /p HTTP/1.1",
            "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n",
            "0\r\n\r\n"
        ),
        [Refuse(400), Refuse(400), Pass("/p")],
        FRAMING,
    ),
    case(
        request!("POST /p HTTP/1.1", "Content-Length: 4\r\nContent-Length: 4\r\n", "body"),
        [Refuse(400), Refuse(400), Pass("/p")],
        TWICE,
    ),
    case(
        request!("POST /p HTTP/1.1", "Content-Length: 4\r\nContent-Length: 5\r\n", "body"),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!("POST /p HTTP/1.1", "Content-Length: 4, 4\r\n", "body"),
        [Refuse(400), Refuse(400), Pass("/p")],
        TWICE,
    ),
    case(
        request!("POST /p HTTP/1.1", "Content-Length: +4\r\n", "body"),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!(
            "POST /p HTTP/1.1",
            "Transfer-Encoding: identity, chunked\r\n",
            "0\r\n\r\n"
        ),
        [Refuse(400), Refuse(501), Refuse(422)],
        CODE,
    ),
    case(
        request!("POST /p HTTP/1.1", "Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n"),
        [Refuse(400), Refuse(501), Refuse(422)],
        CODE,
    ),
    case(
        request!(
            "POST /p HTTP/1.1",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "0\r\n\r\n"
        ),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!("POST /p HTTP/1.1", "Transfer-Encoding : chunked\r\n", "0\r\n\r\n"),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!("POST /p HTTP/1.0", "Transfer-Encoding: chunked\r\n", "0\r\n\r\n"),
        [Refuse(400), Refuse(400), Pass("/p")],
        FRAMING,
    ),
    case(
        request!("POST /p HTTP/1.1", "X-A: b\r\n folded\r\n", ""),
        [Refuse(400), Refuse(400), Pass("/p")],
        "a folded line may be another field to the target (RFC 9112 section 5.2)",
    ),
    case(
        request!("POST /p HTTP/1.1", "X-A: b\nX-B: c\r\n", ""),
        [Refuse(400), Pass("/p"), Pass("/p")],
        LINE,
    ),
    case(
        request!("POST /p HTTP/1.1", "X-A: b\0c\r\n", ""),
        [Refuse(400), Refuse(400), Pass("/p")],
        "a target may end the value there",
    ),
    case(
        request!("POST /p HTTP/1.1", "X A: b\r\n", ""),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!(
            "POST /p HTTP/1.1",
            "Transfer-Encoding: chunked\r\n",
            "4;a=b\r\nbody\r\n0\r\nX-T: u\r\n\r\n"
        ),
        [Pass("/p"), Pass("/p"), Pass("/p")],
        "",
    ),
    case(
        request!(
            "POST /p HTTP/1.1",
            "Transfer-Encoding: chunked\r\n",
            "0x4\r\nbody\r\n0\r\n\r\n"
        ),
        [Refuse(400), Refuse(400), Refuse(400)],
        "",
    ),
    case(
        request!("POST /p HTTP/1.1", "Transfer-Encoding: chunked\r\n", "4\nbody\n0\n\n"),
        [Refuse(400), Pass("/p"), Pass("/p")],
        LINE,
    ),
    case(
        "GET /lf HTTP/1.1\nHost: shop.test\n\n",
        [Refuse(400), Pass("/lf"), Pass("/lf")],
        LINE,
    ),
    case(
        request!("GET /one HTTP/1.1", "", "GET /two HTTP/1.1\r\nHost: shop.test\r\n\r\n"),
        [PassMany(2), PassMany(2), PassMany(2)],
        "",
    ),
    case(
        request!("\r\nGET /after-an-empty-line HTTP/1.1"),
        [
            Pass("/after-an-empty-line"),
            Pass("/after-an-empty-line"),
            Pass("/after-an-empty-line"),
        ],
        "",
    ),
    case(
        request!("GET /u HTTP/1.1", "X_Under: 1\r\n", ""),
        [Pass("/u"), Pass("/u"), Pass("/u")],
        "",
    ),
    case(
        request!(
            "GET /up HTTP/1.1",
            "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n",
            ""
        ),
        [Pass("/up"), Pass("/up"), Pass("/up")],
        "",
    ),
    case(
        request!("HEAD /head HTTP/1.1"),
        [Pass("/head"), Pass("/head"), Pass("/head")],
        "",
    ),
    case(
        request!("DELETE /gone HTTP/1.1", "Content-Length: 0\r\n", ""),
        [Pass("/gone"), Pass("/gone"), Pass("/gone")],
        "",
    ),
    case(
        request!("GET /end HTTP/1.1", "Connection: close\r\n", ""),
        [Pass("/end"), Pass("/end"), Pass("/end")],
        "",
    ),
];
