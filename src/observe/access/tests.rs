use std::collections::BTreeMap;
use std::fs;

use proptest::prelude::*;
use serde_json::Value;

use super::*;

#[test]
fn a_line_has_every_field_under_its_name() {
    let line = rendered(&whole(), &[]);
    let names: Vec<_> = AccessField::ALL.iter().map(|field| field.name()).collect();
    let object: BTreeMap<String, Value> = serde_json::from_slice(&line).unwrap();
    for name in &names {
        assert!(object.contains_key(*name), "{name}");
    }
    assert_eq!(object.len(), names.len());
    let expected = serde_json::json!({
        "time_stamp": "2026-11-30T16:01:09.007Z", "instance_id": "gw-1", "listener_name": "public",
        "rule_name": "shop", "backend_pool_name": "shop", "backend_setting_name": "plain",
        "client_ip": "192.0.2.7", "client_port": 51234, "http_method": "GET",
        "original_request_uri_with_args": "/Shop?x=1", "request_uri": "/shop", "request_query": "x=1",
        "user_agent": "a \"b\"", "http_status": 502, "http_version": "HTTP/2", "received_bytes": 0, "sent_bytes": 1234,
        "client_response_time": 0.000_123, "time_taken": 12.5, "transaction_id": TRACE,
        "ssl_enabled": "on", "ssl_cipher": "TLS13_AES_128_GCM_SHA256", "ssl_protocol": "TLSv1.3",
        "server_routed": "[2001:db8::1]:8080", "server_status": 200, "server_response_latency": 0.25,
        "upstream_source_port": 40000, "server_reused": true, "retries": 1, "dropped_fields": 2, "original_host": "shop.example.com",
        "host": "inside.example", "error_info": "upstream_closed", "content_type": "text/html",
    });
    assert_eq!(serde_json::from_slice::<Value>(&line).unwrap(), expected);
}

#[test]
fn what_has_no_value_is_left_out() {
    let mut line = whole();
    (line.rule, line.pool, line.backend, line.host) = (None, None, None, None);
    (line.query, line.user_agent, line.content_type) = (None, None, None);
    (line.tls, line.target, line.fault) = (None, None, None);
    let object: BTreeMap<String, Value> = serde_json::from_slice(&rendered(&line, &[])).unwrap();
    assert_eq!(object["ssl_enabled"], "off");
    for gone in [
        "rule_name",
        "ssl_cipher",
        "server_routed",
        "server_status",
        "error_info",
        "user_agent",
    ] {
        assert!(!object.contains_key(gone), "{gone}");
    }
}

#[test]
fn fields_are_chosen_and_keep_their_order() {
    let chosen = [AccessField::HttpStatus, AccessField::TimeStamp];
    let text = String::from_utf8(rendered(&whole(), &chosen)).unwrap();
    assert_eq!(
        text,
        "{\"time_stamp\":\"2026-11-30T16:01:09.007Z\",\"http_status\":502}\n"
    );
}

#[test]
fn an_address_mapped_from_ipv4_is_told_as_one() {
    let mut line = whole();
    line.client = "[::ffff:192.0.2.9]:1".parse().unwrap();
    let object: Value = serde_json::from_slice(&rendered(&line, &[])).unwrap();
    assert_eq!(object["client_ip"], "192.0.2.9");
}

#[test]
fn a_long_field_is_cut_between_letters() {
    let long = "ä".repeat(5000);
    let mut line = whole();
    // One byte before the letters, so that the cut would fall into the middle of one.
    let agent = format!("x{long}");
    line.user_agent = Some(agent.as_bytes());
    let object: Value = serde_json::from_slice(&rendered(&line, &[])).unwrap();
    let agent = object["user_agent"].as_str().unwrap();
    assert!(agent.ends_with("ä…") && agent.len() < 4200, "{}", agent.len());
}

#[test]
fn one_odd_byte_is_seen_wherever_it_stands() {
    for (byte, place) in (0..=u8::MAX).flat_map(|byte| (0..17).map(move |place| (byte, place))) {
        let mut agent = [b'a'; 17];
        agent[place] = byte;
        let mut line = whole();
        line.user_agent = Some(&agent);
        let rendered = rendered(&line, &[AccessField::UserAgent]);
        let object: Value = serde_json::from_slice(&rendered).unwrap();
        let expected = String::from_utf8_lossy(&agent);
        assert_eq!(object["user_agent"].as_str(), Some(&*expected), "{byte} {place}");
        assert!(!rendered.contains(&0x7f), "{place}");
    }
}

proptest! {
    #[test]
    fn whatever_came_it_is_one_line_of_json(bytes in proptest::collection::vec(any::<u8>(), 0..200), path in ".*") {
        let mut line = whole();
        line.user_agent = Some(&bytes);
        line.path = &path;
        let rendered = rendered(&line, &[]);
        let newlines = rendered.iter().filter(|&&byte| byte == b'\n').count();
        prop_assert_eq!(newlines, 1);
        let object: Value = serde_json::from_slice(&rendered).unwrap();
        prop_assert_eq!(object["request_uri"].as_str(), Some(path.as_str()));
        let agent = String::from_utf8_lossy(&bytes);
        prop_assert_eq!(object["user_agent"].as_str(), Some(&*agent));
    }

    #[test]
    fn numbers_and_times_are_what_they_were(number in any::<u64>(), micros in 0..u64::from(u32::MAX)) {
        let mut line = whole();
        line.sent = number;
        line.taken = Duration::from_micros(micros);
        let text = String::from_utf8(rendered(&line, &[AccessField::SentBytes, AccessField::TimeTaken])).unwrap();
        let expected = format!("{{\"sent_bytes\":{number},\"time_taken\":{}.{:06}}}\n", micros / 1_000_000, micros % 1_000_000);
        prop_assert_eq!(text, expected);
    }
}

#[test]
fn lines_get_to_the_file_and_after_a_change_to_the_new_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let log = AccessLog::start(&to(&file), "gw-1").unwrap();
    assert!(log.is_on());
    log.write(&whole());
    assert!(log.flush(PATIENCE));
    let moved = folder.path().join("access.log.1");
    fs::rename(&file, &moved).unwrap();
    log.apply(&to(&file)).unwrap();
    log.write(&whole());
    log.write(&whole());
    assert!(log.flush(PATIENCE));
    assert_eq!((count(&moved), count(&file)), (1, 2));
    assert_eq!(log.dropped(), 0);
}

#[test]
fn what_waits_at_the_end_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let log = AccessLog::start(&to(&file), "gw-1").unwrap();
    log.write(&whole());
    drop(log);
    assert_eq!(count(&file), 1);
}

#[test]
fn nothing_is_made_for_nobody() {
    let log = AccessLog::start(&web::AccessLog::default(), "gw-1").unwrap();
    assert!(!log.is_on());
    log.write(&whole());
    assert_eq!(log.shared.waiting.load(Ordering::Relaxed), 0);
}

#[test]
fn a_file_that_cannot_be_had_is_refused_and_the_former_one_stays() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let log = AccessLog::start(&to(&file), "gw-1").unwrap();
    let fault = log.apply(&to(&folder.path().join("no/such/folder/log"))).unwrap_err();
    assert!(fault.to_string().contains("Make its folder"), "{fault}");
    log.write(&whole());
    assert!(log.flush(PATIENCE));
    assert_eq!(count(&file), 1);
}

#[test]
fn of_many_that_went_well_a_share_is_written_and_of_the_others_all() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let mut config = to(&file);
    config.sample_percent = 10;
    let log = AccessLog::start(&config, "gw-1").unwrap();
    for number in 0..1000_u32 {
        let trace = format!("{:024x}{number:08x}", 0);
        let mut line = whole();
        (line.trace, line.fault, line.status) = (&trace, None, 200);
        log.write(&line);
        if number % 10 == 0 {
            line.status = 404;
            log.write(&line);
        }
    }
    assert!(log.flush(PATIENCE));
    assert_eq!(count(&file), 100 + 100);
}

#[test]
fn whoever_tells_never_waits_and_what_is_too_much_is_counted() {
    let shared = Shared {
        baskets: Default::default(),
        waiting: AtomicUsize::new(0),
        dropped: AtomicU64::new(0),
        next: Mutex::new(None),
        bell: Bell::default(),
    };
    // Nobody empties the baskets, as if a pipe were full.
    let line = [b'x'; 1024];
    let room = MOST_WAITING / line.len();
    for number in 0..room + 5 {
        shared.lay(number, &line);
    }
    assert_eq!(shared.dropped.load(Ordering::Relaxed), 5);
    let held: usize = shared.baskets.iter().map(|basket| basket.0.lock().len()).sum();
    assert_eq!(held, MOST_WAITING);
}

#[test]
fn a_disk_that_is_full_costs_lines_and_nothing_else() {
    let log = AccessLog::start(&to(Path::new("/dev/full")), "gw-1").unwrap();
    log.write(&whole());
    log.write(&whole());
    assert!(log.flush(PATIENCE));
    assert_eq!(log.dropped(), 2);
    assert_eq!(log.shared.waiting.load(Ordering::Relaxed), 0);
}

#[test]
fn lines_of_many_threads_all_arrive_whole() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("access.log");
    let log = AccessLog::start(&to(&file), "gw-1").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| (0..200).for_each(|_| log.write(&whole())));
        }
    });
    assert!(log.flush(PATIENCE));
    let text = fs::read_to_string(&file).unwrap();
    let whole_lines = text.lines().filter(|line| serde_json::from_str::<Value>(line).is_ok());
    assert_eq!((whole_lines.count() as u64) + log.dropped(), 20 * 200);
}

#[test]
fn drops_are_told_at_once_and_then_once_a_minute() {
    let start = clock::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let mut told = Told::default();
    assert_eq!(told.more(0, after(0)), None);
    assert_eq!(told.more(3, after(1)), Some(3));
    assert_eq!(told.more(5, after(30)), None);
    assert_eq!(told.more(9, after(61)), Some(6));
    assert_eq!(told.more(9, after(200)), None);
}

const TRACE: &str = "0123456789abcdef0123456789abcdef";

const PATIENCE: Duration = Duration::from_secs(20);

fn whole() -> Line<'static> {
    Line {
        begun: "2026-11-30T16:01:09.007Z".parse().unwrap(),
        listener: "public",
        rule: Some("shop"),
        pool: Some("shop"),
        backend: Some("plain"),
        client: "192.0.2.7:51234".parse().unwrap(),
        method: "GET",
        original_target: b"/Shop?x=1",
        path: "/shop",
        query: Some("x=1"),
        user_agent: Some(b"a \"b\""),
        status: 502,
        version: "HTTP/2",
        received: 0,
        sent: 1234,
        answering: Duration::from_micros(123),
        taken: Duration::from_millis(12_500),
        trace: TRACE,
        tls: Some(("TLSv1.3", "TLS13_AES_128_GCM_SHA256")),
        target: Some(Served {
            address: "[2001:db8::1]:8080".parse().unwrap(),
            source_port: Some(40_000),
            status: Some(200),
            latency: Some(Duration::from_millis(250)),
            reused: true,
        }),
        retries: 1,
        dropped_fields: 2,
        original_host: "shop.example.com",
        host: Some("inside.example"),
        fault: Some(WebFault::UpstreamClosed),
        content_type: Some(b"text/html"),
    }
}

fn rendered(line: &Line<'_>, fields: &[AccessField]) -> Vec<u8> {
    let mut out = Vec::new();
    let fields: BTreeSet<_> = fields.iter().copied().collect();
    line::render(&mut out, line, "gw-1", Fields::of(&fields));
    out
}

fn to(file: &Path) -> web::AccessLog {
    web::AccessLog {
        to: Some(web::AccessLogTo::File(file.to_owned())),
        sample_percent: 100,
        fields: Vec::new(),
    }
}

fn count(file: &Path) -> usize {
    fs::read_to_string(file).unwrap().lines().count()
}
