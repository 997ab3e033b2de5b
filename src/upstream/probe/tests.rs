use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::sleep;

use super::*;

#[tokio::test]
async fn a_probe_is_a_plain_get_under_the_target_s_name() {
    let server = Server::start("HTTP/1.1 204 No Content\r\n\r\n").await;
    let recipe = server.recipe("shop-2.example", |probe, _| probe.path = "/up?deep=1".into());
    let result = recipe.run().await;
    assert_eq!((result.outcome, result.address), (Ok(Some(204)), server.address));
    let port = server.address.port();
    let seen = server.seen.lock().clone().to_ascii_lowercase();
    assert!(seen.starts_with("get /up?deep=1 http/1.1\r\n"), "{seen}");
    assert!(seen.contains(&format!("\r\nhost: shop-2.example:{port}\r\n")), "{seen}");
    assert!(seen.contains("\r\nconnection: close\r\n"), "{seen}");
}

#[tokio::test]
async fn where_nothing_is_understood_a_connection_is_all_that_is_asked_for() {
    let server = Server::start("not sent, because nothing is asked").await;
    for (protocol, version) in [
        (Some(ProbeProtocol::Tcp), BackendVersion::Http1),
        (Some(ProbeProtocol::Tcp), BackendVersion::Http2),
        (None, BackendVersion::Bytes),
    ] {
        let recipe = server.recipe("10.0.0.5", |probe, backend| {
            probe.protocol = protocol;
            backend.version = version;
        });
        assert_eq!(recipe.run().await.outcome, Ok(None), "{protocol:?} {version:?}");
    }
    let asks = server.recipe("10.0.0.5", |probe, backend| {
        probe.protocol = Some(ProbeProtocol::Http);
        backend.version = BackendVersion::Bytes;
    });
    assert_eq!(asks.run().await.outcome, Err(ProbeFault::Malformed));
}

#[tokio::test]
async fn a_status_outside_the_list_is_named_with_it() {
    let server = Server::start("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n").await;
    let recipe = server.recipe("10.0.0.5", |probe, _| probe.status = vec![200..=299, 401..=401]);
    let fault = recipe.run().await.outcome.unwrap_err();
    assert_eq!(fault.code(), "status_mismatch");
    assert_eq!(
        fault.to_string(),
        "status 404 is not among those expected (200-299, 401)"
    );
}

#[tokio::test]
async fn redirects_are_not_followed() {
    let server = Server::start("HTTP/1.1 302 Found\r\nLocation: http://192.0.2.1/\r\nContent-Length: 0\r\n\r\n").await;
    assert_eq!(server.recipe("10.0.0.5", |_, _| {}).run().await.outcome, Ok(Some(302)));
}

#[tokio::test]
async fn the_body_contains_the_text_wherever_it_is_cut() {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nall\r\n5\r\n is w\r\n3\r\nell\r\n0\r\n\r\n";
    let server = Server::start(answer).await;
    let of = async |text: &str| {
        let recipe = server.recipe("10.0.0.5", |probe, _| probe.body = Some(text.to_owned()));
        recipe.run().await.outcome
    };
    assert_eq!(of("is well").await, Ok(Some(200)));
    assert_eq!(of("allis").await, Err(ProbeFault::Body));
}

#[tokio::test]
async fn an_endless_body_is_looked_at_for_a_while_only() {
    let server = Server::start_endless().await;
    let recipe = server.recipe("10.0.0.5", |probe, _| probe.body = Some("never".to_owned()));
    assert_eq!(recipe.run().await.outcome, Err(ProbeFault::Body));
}

#[tokio::test]
async fn what_is_no_answer_is_told_apart() {
    let closes = Server::start("").await;
    assert_eq!(
        closes.recipe("10.0.0.5", |_, _| {}).run().await.outcome,
        Err(ProbeFault::Closed)
    );
    let garbage = Server::start("SSH-2.0-x\r\n\r\n").await;
    assert_eq!(
        garbage.recipe("10.0.0.5", |_, _| {}).run().await.outcome,
        Err(ProbeFault::Malformed)
    );
    let nobody = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let recipe = recipe(nobody, "10.0.0.5", |_, _| {});
    assert_eq!(recipe.run().await.outcome.unwrap_err().code(), "refused");
    let tls = closes.recipe("10.0.0.5", |_, backend| backend.tls = Some(web::BackendTls::default()));
    assert_eq!(tls.run().await.outcome.unwrap_err().code(), "no_tls");
}

#[tokio::test(start_paused = true)]
async fn the_whole_of_a_probe_has_one_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let recipe = recipe(listener.local_addr().unwrap(), "10.0.0.5", |probe, _| {
        probe.timeout = Duration::from_secs(7)
    });
    let result = recipe.run().await;
    assert_eq!(result.outcome, Err(ProbeFault::Timeout));
    assert_eq!(result.took.as_secs(), 7);
}

#[tokio::test]
async fn a_target_that_speaks_http2_is_probed_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    #[expect(clippy::disallowed_methods, reason = "a peer of a test, which ends with it")]
    tokio::spawn(async move {
        let (io, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(io).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            assert_eq!(request.uri().path(), "/up");
            let mut body = respond.send_response(http::Response::new(()), false).unwrap();
            body.send_data(Bytes::from_static(b"I am well"), true).unwrap();
        }
    });
    let recipe = recipe(address, "shop.example", |probe, backend| {
        backend.version = BackendVersion::Http2;
        (probe.path, probe.body) = ("/up".into(), Some("well".into()));
    });
    assert_eq!(recipe.run().await.outcome, Ok(Some(200)));
}

#[test]
fn the_host_of_a_probe_is_its_own_or_the_backend_s_or_the_target_s() {
    let of = |target: &str, address: &str, change: &dyn Fn(&mut web::Probe, &mut Backend)| {
        recipe(address.parse().unwrap(), target, change).way.host
    };
    assert_eq!(of("shop.example", "10.0.0.5:80", &|_, _| {}), "shop.example");
    assert_eq!(of("fd00::1", "[fd00::1]:8080", &|_, _| {}), "[fd00::1]:8080");
    let tls = |_: &mut web::Probe, backend: &mut Backend| backend.tls = Some(web::BackendTls::default());
    assert_eq!(of("shop.example", "10.0.0.5:443", &tls), "shop.example");
    let fixed = |_: &mut web::Probe, backend: &mut Backend| backend.host = BackendHost::Name("www.example".into());
    assert_eq!(of("10.0.0.5", "10.0.0.5:8080", &fixed), "www.example");
    let own = |probe: &mut web::Probe, backend: &mut Backend| {
        fixed(probe, backend);
        probe.host = Some("probe.example".into());
    };
    assert_eq!(of("10.0.0.5", "10.0.0.5:8080", &own), "probe.example");
    let port = recipe("10.0.0.5:8080".parse().unwrap(), "10.0.0.5", |probe, _| {
        probe.port = Some(9000)
    });
    assert_eq!(port.way.address.port(), 9000);
}

#[tokio::test(start_paused = true)]
async fn probes_come_soon_and_then_from_interval_to_interval() {
    let mut rig = Rig::start();
    rig.run_for(0.6).await;
    assert_eq!((rig.probes(), rig.check.condition()), (1, Condition::Healthy));
    rig.run_for(10.0).await;
    assert_eq!(rig.probes(), 2, "the second comes after half an interval or more");
    rig.run_for(100.0).await;
    assert_eq!(rig.probes(), 12);
    rig.fake.behave(Behaviour::Closes);
    rig.run_for(20.0).await;
    assert_eq!(rig.check.condition(), Condition::Healthy, "two failures");
    rig.run_for(10.0).await;
    assert_eq!(rig.check.condition(), Condition::Unhealthy);
    rig.fake.behave(Behaviour::Answers);
    rig.run_for(10.0).await;
    assert_eq!(rig.check.condition(), Condition::Healthy, "one success");
    rig.change(|probe| probe.status = vec![201..=201]);
    rig.run_for(0.6).await;
    assert_eq!(rig.probes(), 17, "another probe is not waited for");
}

#[tokio::test(start_paused = true)]
async fn slow_probes_alone_do_not_take_away_what_users_see_working() {
    let rig = Rig::start();
    rig.run_for(1.0).await;
    rig.fake.behave(Behaviour::Hangs);
    for _ in 0..10 {
        rig.run_for(10.0).await;
        rig.check.answered(clock::now());
    }
    assert_eq!(rig.check.condition(), Condition::Healthy);
    assert!(rig.check.known().results().take(5).all(|result| result.is_excused));
    rig.run_for(60.0).await;
    assert_eq!(rig.check.condition(), Condition::Unhealthy, "no user sees it working");
}

#[tokio::test(start_paused = true)]
async fn what_users_see_excuses_slowness_and_nothing_else() {
    let rig = Rig::start();
    rig.run_for(1.0).await;
    rig.fake.behave(Behaviour::Closes);
    for _ in 0..5 {
        rig.run_for(10.0).await;
        rig.check.answered(clock::now());
    }
    assert_eq!(rig.check.condition(), Condition::Unhealthy);
}

/// Connections without TLS. A target that should have TLS is not reached.
#[derive(Clone, Copy, Debug, Default)]
struct Plain;

impl Reach for Plain {
    fn reach<'a>(&'a self, way: &'a Way) -> Pin<Box<dyn Future<Output = Result<Reached, Unreached>> + Send + 'a>> {
        Box::pin(async {
            let fault = |code, is_timeout, words: String| Unreached {
                code,
                words,
                is_timeout,
            };
            if way.settings.tls.is_some() {
                return Err(fault("no_tls", false, "this node has no TLS for probes".to_owned()));
            }
            let connected = timeout(way.settings.connect_timeout, TcpStream::connect(way.address)).await;
            let io = match connected {
                Ok(Ok(io)) => io,
                Ok(Err(cause)) => return Err(fault("refused", false, cause.to_string())),
                Err(_) => return Err(fault("connect_timeout", true, "no connection in time".to_owned())),
            };
            crate::upstream::set_options(&io).map_err(|cause| fault("system", false, cause.to_string()))?;
            Ok(Reached {
                io: Box::new(io),
                tls: None,
            })
        })
    }
}

fn recipe(address: SocketAddr, host: &str, change: impl FnOnce(&mut web::Probe, &mut Backend)) -> Recipe {
    let (mut probe, mut backend) = (web::Probe::default(), Backend::default());
    change(&mut probe, &mut backend);
    Recipe::new(
        Arc::new(probe),
        (None, Arc::new(backend)),
        (host, address),
        Arc::new(Plain),
    )
}

/// A target that answers every request the same way and closes.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<String>>,
}

impl Server {
    async fn start(answer: &'static str) -> Self {
        Self::start_with(answer, false).await
    }

    async fn start_endless() -> Self {
        Self::start_with("HTTP/1.1 200 OK\r\n\r\n", true).await
    }

    async fn start_with(answer: &'static str, is_endless: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
            seen: Arc::default(),
        };
        let seen = server.seen.clone();
        #[expect(clippy::disallowed_methods, reason = "a peer of a test, which ends with it")]
        tokio::spawn(async move {
            while let Ok((mut io, _)) = listener.accept().await {
                let mut head = [0; 4096];
                let length = io.read(&mut head).await.unwrap_or(0);
                *seen.lock() = String::from_utf8_lossy(&head[..length]).into_owned();
                let mut written = io.write_all(answer.as_bytes()).await;
                while is_endless && written.is_ok() {
                    written = io.write_all(&[b'.'; 4096]).await;
                }
            }
        });
        server
    }

    fn recipe(&self, host: &str, change: impl FnOnce(&mut web::Probe, &mut Backend)) -> Recipe {
        recipe(self.address, host, change)
    }
}

/// A target under watch, in virtual time: every ten seconds, for three seconds at most.
struct Rig {
    fake: Arc<Fake>,
    check: Arc<Check>,
    recipes: watch::Sender<Arc<Recipe>>,
    probe: web::Probe,
}

impl Rig {
    fn start() -> Self {
        let probe = web::Probe {
            interval: Duration::from_secs(10),
            timeout: Duration::from_secs(3),
            ..web::Probe::default()
        };
        let fake = Arc::new(Fake::default());
        let (recipes, received) = watch::channel(fake.recipe(&probe));
        let rig = Self {
            check: Check::new(clock::now()),
            fake,
            recipes,
            probe,
        };
        let id = TargetId::new("10.0.0.5", ADDRESS, None);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test")]
        tokio::spawn(keep_watch(id, rig.check.clone(), received, Dice(7)));
        rig
    }

    fn change(&mut self, change: impl FnOnce(&mut web::Probe)) {
        change(&mut self.probe);
        self.recipes.send_replace(self.fake.recipe(&self.probe));
    }

    async fn run_for(&self, seconds: f64) {
        sleep(Duration::from_secs_f64(seconds)).await;
    }

    fn probes(&self) -> usize {
        self.fake.probes.load(Ordering::Relaxed)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Behaviour {
    #[default]
    Answers,
    Closes,
    Hangs,
}

/// A way to a target without a network.
#[derive(Debug, Default)]
struct Fake {
    behaviour: Mutex<Behaviour>,
    probes: AtomicUsize,
}

impl Fake {
    fn behave(&self, behaviour: Behaviour) {
        *self.behaviour.lock() = behaviour;
    }

    fn recipe(self: &Arc<Self>, probe: &web::Probe) -> Arc<Recipe> {
        let backend = (None, Arc::new(Backend::default()));
        Arc::new(Recipe::new(
            Arc::new(probe.clone()),
            backend,
            ("10.0.0.5", ADDRESS),
            self.clone(),
        ))
    }
}

impl Reach for Fake {
    fn reach<'a>(&'a self, _way: &'a Way) -> Pin<Box<dyn Future<Output = Result<Reached, Unreached>> + Send + 'a>> {
        self.probes.fetch_add(1, Ordering::Relaxed);
        let (near, far) = duplex(4096);
        let behaviour = *self.behaviour.lock();
        #[expect(clippy::disallowed_methods, reason = "a peer of a test, which ends with it")]
        tokio::spawn(answer(far, behaviour));
        Box::pin(std::future::ready(Ok(Reached {
            io: Box::new(near),
            tls: None,
        })))
    }
}

async fn answer(mut io: DuplexStream, behaviour: Behaviour) {
    let _ = io.read(&mut [0; 1024]).await;
    match behaviour {
        Behaviour::Answers => _ = io.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await,
        Behaviour::Closes => {}
        Behaviour::Hangs => std::future::pending().await,
    }
}

const ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 5)), 80);
