use std::future::{Future, ready};
use std::pin::Pin;
use std::time::Duration;

use http::StatusCode;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
use tokio::time::sleep;

use super::*;
use crate::config::web::{Balance, Forward, ForwardAuthentication, Guard, HeaderPolicy, Rule, UnusualFields};
use crate::fault::WebFault;
use crate::upstream::probe::{Reached, Unreached, Way};
use crate::upstream::resolve::{Answer, Family};
use crate::upstream::{Condition, DeriveNothing, DnsFault, Lease, Outcome};

#[tokio::test(start_paused = true)]
async fn a_pool_serves_from_the_first_moment_and_leaves_out_who_fails() {
    let world = World::new();
    world.inside.down("10.0.0.2");
    world.apply(&shop(&["10.0.0.1", "10.0.0.2"]));
    assert_eq!(world.asked("shop"), ["10.0.0.1", "10.0.0.2"], "nothing is known yet");
    world.run_for(1).await;
    assert_eq!(world.asked("shop"), ["10.0.0.1"]);
    world.run_for(120).await;
    assert_eq!(world.conditions("shop"), [Condition::Healthy, Condition::Unhealthy]);
    world.inside.up("10.0.0.2");
    world.run_for(30).await;
    assert_eq!(world.asked("shop"), ["10.0.0.1", "10.0.0.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_target_that_is_added_waits_for_its_first_success() {
    let world = World::new();
    world.apply(&shop(&["10.0.0.1"]));
    world.run_for(1).await;
    world.apply(&shop(&["10.0.0.1", "10.0.0.2"]));
    assert_eq!(world.asked("shop"), ["10.0.0.1"]);
    world.run_for(1).await;
    assert_eq!(world.asked("shop"), ["10.0.0.1", "10.0.0.2"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_keeps_what_is_known_of_targets_that_stay() {
    let world = World::new();
    world.inside.down("10.0.0.2");
    let mut config = shop(&["10.0.0.1", "10.0.0.2"]);
    world.apply(&config);
    world.run_for(100).await;
    let held = world.pick("shop").unwrap();
    let probes = world.inside.probes();
    config.pools.get_mut("shop").unwrap().balance = Balance::LeastRequests;
    config.pools.get_mut("shop").unwrap().targets[0].weight = 5;
    world.apply(&config);
    assert_eq!(world.conditions("shop"), [Condition::Healthy, Condition::Unhealthy]);
    let view = world.pools.view(clock::now());
    assert_eq!(
        (view.pools[0].targets[0].in_flight, view.pools[0].targets[0].weight),
        (1, 5)
    );
    world.run_for(1).await;
    assert_eq!(world.inside.probes(), probes, "nothing new to probe");
    assert!(!held.cut().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn another_probe_is_asked_soon_and_keeps_the_condition_until_then() {
    let world = World::new();
    let mut config = shop(&["10.0.0.1"]);
    world.apply(&config);
    world.run_for(1).await;
    let probes = world.inside.probes();
    config.backends.insert(
        "web".into(),
        Backend {
            probe: Some("other".into()),
            ..Backend::default()
        },
    );
    config.probes.insert(
        "other".into(),
        web::Probe {
            status: vec![204..=204],
            ..web::Probe::default()
        },
    );
    world.apply(&config);
    assert_eq!(world.conditions("shop"), [Condition::Healthy]);
    world.run_for(1).await;
    assert_eq!(world.inside.probes(), probes + 1);
    world.run_for(100).await;
    assert_eq!(world.conditions("shop"), [Condition::Unhealthy]);
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_away_is_drained_and_then_cut_though_nobody_asks() {
    let world = World::new();
    world.apply(&shop(&["10.0.0.1", "10.0.0.2"]));
    world.run_for(1).await;
    let leases: Vec<_> = (0..2).map(|_| world.pick("shop").unwrap()).collect();
    let (stays, goes) = if leases[0].host() == "10.0.0.1" { (0, 1) } else { (1, 0) };
    world.apply(&shop(&["10.0.0.1"]));
    assert_eq!(world.asked("shop"), ["10.0.0.1"]);
    let hint = leases[goes].target().clone();
    let pool = world.pools.find("shop", Some("web")).unwrap();
    assert_eq!(
        pool.pick(Some(&hint), clock::now()).unwrap().target(),
        &hint,
        "its clients stay"
    );
    world.run_for(29).await;
    assert!(!leases[goes].cut().is_cancelled());
    world.run_for(2).await;
    assert!(leases[goes].cut().is_cancelled() && !leases[stays].cut().is_cancelled());
    let probes = world.inside.probes_of("10.0.0.2");
    world.run_for(300).await;
    assert_eq!(world.inside.probes_of("10.0.0.2"), probes, "nobody probes it any more");
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_no_rule_uses_is_drained_and_may_come_back() {
    let world = World::new();
    let config = shop(&["10.0.0.1"]);
    world.apply(&config);
    world.run_for(1).await;
    let held = world.pick("shop").unwrap();
    world.apply(&Web::default());
    assert!(world.pools.find("shop", Some("web")).is_none());
    world.run_for(20).await;
    world.apply(&config);
    world.run_for(60).await;
    assert!(!held.cut().is_cancelled() && world.pick("shop").is_ok());
    world.apply(&Web::default());
    world.run_for(31).await;
    assert!(held.cut().is_cancelled());
    assert_eq!(world.home.tasks.len(), 0, "nothing is left behind");
}

#[tokio::test(start_paused = true)]
async fn pools_of_the_configuration_before_serve_until_they_are_retired() {
    let world = World::new();
    world.apply(&shop(&["10.0.0.1"]));
    world.run_for(1).await;
    world.pools.apply(&Web::default(), &world.fittings, clock::now());
    let held = world.pick("shop").unwrap();
    world.run_for(300).await;
    assert!(!held.cut().is_cancelled() && world.pick("shop").is_ok());
    world.pools.retire(clock::now());
    assert!(world.pools.find("shop", Some("web")).is_none());
    world.run_for(31).await;
    assert!(held.cut().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn once_settled_a_good_name_is_a_target() {
    let world = World::new();
    world.inside.name(&["10.0.0.1"]);
    world.pools.settle().await;
    world.apply(&shop(&["shop.example"]));
    world.pools.settle().await;
    assert!(world.pick("shop").is_ok());
    world.inside.name(&[]);
    world.apply(&shop(&["other.example"]));
    world.pools.settle().await;
    assert_eq!(
        world.pick("shop").unwrap_err(),
        WebFault::NoTarget,
        "it has been asked for all the same"
    );
}

#[tokio::test(start_paused = true)]
async fn every_address_of_a_name_is_a_target_and_a_change_is_followed_at_expiry() {
    let world = World::new();
    world.inside.name(&["10.0.0.1", "10.0.0.2"]);
    world.apply(&shop(&["shop.example"]));
    assert_eq!(
        world.pick("shop").unwrap_err(),
        WebFault::NoTarget,
        "nobody knows where it is"
    );
    world.run_for(1).await;
    assert_eq!(world.asked("shop"), ["10.0.0.1", "10.0.0.2"]);
    let leases: Vec<_> = (0..2).map(|_| world.pick("shop").unwrap()).collect();
    world.inside.name(&["10.0.0.2", "10.0.0.3"]);
    world.run_for(66).await;
    assert_eq!(world.asked("shop"), ["10.0.0.2", "10.0.0.3"]);
    world.run_for(60).await;
    assert!(
        leases.iter().all(|lease| !lease.cut().is_cancelled()),
        "what runs goes on"
    );
    let ids: Vec<_> = leases.iter().map(|lease| lease.target().as_str()).collect();
    assert!(ids.contains(&"shop.example=10.0.0.1:80/web"), "{ids:?}");
}

#[tokio::test(start_paused = true)]
async fn a_name_that_vanishes_keeps_its_last_addresses_and_is_seen_to() {
    let world = World::new();
    world.inside.name(&["10.0.0.1"]);
    world.apply(&shop(&["shop.example"]));
    world.run_for(1).await;
    world.inside.name(&[]);
    world.run_for(300).await;
    assert_eq!(world.asked("shop"), ["10.0.0.1"]);
    let view = world.pools.view(clock::now());
    assert_eq!(view.names[0].fault.unwrap().0, DnsFault::NoSuchName);
    world.apply(&shop(&["10.0.0.1"]));
    assert!(world.pools.view(clock::now()).names.is_empty());
}

#[tokio::test(start_paused = true)]
async fn other_name_servers_count_at_once() {
    let world = World::new();
    world.inside.name(&["10.0.0.1"]);
    let mut config = shop(&["shop.example"]);
    world.apply(&config);
    world.run_for(1).await;
    // Nobody answers there; what is known stays.
    config.resolvers = vec![([127, 0, 0, 1], 9).into()];
    world.apply(&config);
    assert_eq!(world.asked("shop"), ["10.0.0.1"]);
    world.run_for(40).await;
    assert!(world.pools.view(clock::now()).names[0].fault.is_some());
    assert_eq!(world.asked("shop"), ["10.0.0.1"]);
}

#[tokio::test(start_paused = true)]
async fn pools_share_the_probes_of_a_target_but_backends_do_not() {
    let world = World::new();
    let mut config = shop(&["10.0.0.1"]);
    config.pools.insert("api".into(), config.pools["shop"].clone());
    let same = Action::Forward(Forward {
        pool: "api".into(),
        backend: Some("web".into()),
        rewrite: None,
    });
    config.rules.insert("api".into(), rule(same));
    world.apply(&config);
    world.run_for(1).await;
    assert_eq!(world.inside.probes(), 1);
    let guard = Guard {
        authentication: Some(ForwardAuthentication {
            pool: "api".into(),
            backend: None,
            path: "/".into(),
            copy: Vec::new(),
            exempt: Vec::new(),
        }),
        ..Guard::default()
    };
    config.rules.get_mut("api").unwrap().guard = guard;
    world.apply(&config);
    world.run_for(1).await;
    assert_eq!(world.inside.probes(), 2);
    assert!(world.pools.find("api", None).is_some() && world.pools.find("shop", None).is_none());
}

#[tokio::test(start_paused = true)]
async fn slow_probes_of_all_targets_at_once_leave_those_that_users_see_working() {
    let world = World::new();
    world.apply(&shop(&["10.0.0.1", "10.0.0.2"]));
    world.run_for(1).await;
    world.inside.slow("10.0.0.1");
    world.inside.slow("10.0.0.2");
    for _ in 0..300 {
        world.run_for(1).await;
        for _ in 0..2 {
            let lease = world.pick("shop").unwrap();
            lease.report(Outcome::Answered(StatusCode::OK), clock::now());
        }
    }
    assert_eq!(world.asked("shop").len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_tasks_end_with_the_pools() {
    let world = World::new();
    world.apply(&shop(&["10.0.0.1", "shop.example"]));
    world.run_for(1).await;
    let World { pools, home, .. } = world;
    assert!(!home.tasks.is_empty());
    drop(pools);
    home.tasks.close();
    home.tasks.wait().await;
}

#[tokio::test(start_paused = true)]
async fn five_thousand_targets_are_applied_and_applied_again() {
    let world = World::new();
    let hosts: Vec<_> = (0..5000)
        .map(|place| format!("10.1.{}.{}", place / 250, place % 250 + 1))
        .collect();
    let hosts: Vec<_> = hosts.iter().map(String::as_str).collect();
    let config = shop(&hosts);
    world.apply(&config);
    world.apply(&config);
    assert_eq!(world.pools.view(clock::now()).pools[0].targets.len(), 5000);
    assert!(world.pick("shop").is_ok());
}

/// The pools of a node, and what lies behind them, in virtual time.
struct World {
    pools: Pools,
    inside: Arc<Inside>,
    fittings: Fittings,
    home: Home,
}

impl World {
    fn new() -> Self {
        let inside = Arc::new(Inside::default());
        let home = Home {
            runtime: Handle::current(),
            tasks: TaskTracker::new(),
            stopping: CancellationToken::new(),
        };
        Self {
            pools: Pools::asking(home.clone(), 1, inside.clone()),
            fittings: Fittings {
                reach: inside.clone(),
                derive: Arc::new(DeriveNothing),
            },
            inside,
            home,
        }
    }

    fn apply(&self, config: &Web) {
        self.pools.apply(config, &self.fittings, clock::now());
        self.pools.retire(clock::now());
    }

    async fn run_for(&self, seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    fn pick(&self, pool: &str) -> Result<Lease, WebFault> {
        self.pools.find(pool, Some("web")).unwrap().pick(None, clock::now())
    }

    /// The addresses that ten requests go to, each once and in order.
    fn asked(&self, pool: &str) -> Vec<String> {
        let leases: Vec<_> = (0..10).map(|_| self.pick(pool).unwrap()).collect();
        let asked: BTreeSet<_> = leases.iter().map(|lease| lease.address().ip().to_string()).collect();
        asked.into_iter().collect()
    }

    fn conditions(&self, pool: &str) -> Vec<Condition> {
        let view = self.pools.view(clock::now());
        let view = view.pools.into_iter().find(|view| view.pool == pool).unwrap();
        view.targets.iter().map(|target| target.condition).collect()
    }
}

/// A name server that knows one name, and targets that answer probes or do not.
#[derive(Debug, Default)]
struct Inside {
    addresses: Mutex<Vec<IpAddr>>,
    down: Mutex<HashSet<IpAddr>>,
    slow: Mutex<HashSet<IpAddr>>,
    probes: Mutex<Vec<IpAddr>>,
}

impl Inside {
    fn name(&self, addresses: &[&str]) {
        *self.addresses.lock() = addresses.iter().map(|address| address.parse().unwrap()).collect();
    }

    fn down(&self, address: &str) {
        self.down.lock().insert(address.parse().unwrap());
    }

    fn up(&self, address: &str) {
        self.down.lock().remove(&address.parse().unwrap());
    }

    fn slow(&self, address: &str) {
        self.slow.lock().insert(address.parse().unwrap());
    }

    fn probes(&self) -> usize {
        self.probes.lock().len()
    }

    fn probes_of(&self, address: &str) -> usize {
        let address: IpAddr = address.parse().unwrap();
        self.probes.lock().iter().filter(|probed| **probed == address).count()
    }
}

impl Ask for Inside {
    fn ask<'a>(&'a self, _name: &'a str) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        let addresses = self.addresses.lock().clone();
        let none = Family::HasNone(DnsFault::NoSuchName);
        let v4 = if addresses.is_empty() {
            none.clone()
        } else {
            Family::Has(addresses, Duration::from_secs(60))
        };
        Box::pin(ready(Answer { v4, v6: none }))
    }
}

impl Reach for Inside {
    fn reach<'a>(&'a self, way: &'a Way) -> Pin<Box<dyn Future<Output = Result<Reached, Unreached>> + Send + 'a>> {
        let address = way.address.ip();
        self.probes.lock().push(address);
        if self.down.lock().contains(&address) {
            let unreached = Unreached {
                code: "refused",
                words: "refused".into(),
                is_timeout: false,
            };
            return Box::pin(ready(Err(unreached)));
        }
        let (near, mut far) = duplex(4096);
        let is_slow = self.slow.lock().contains(&address);
        #[expect(clippy::disallowed_methods, reason = "a peer of a test, which ends with it")]
        tokio::spawn(async move {
            let _ = far.read(&mut [0; 1024]).await;
            if is_slow {
                sleep(Duration::from_secs(3600)).await;
            }
            let _ = far.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        });
        Box::pin(ready(Ok(Reached {
            io: Box::new(near),
            tls: None,
        })))
    }
}

/// A rule that sends everything to the pool `shop` by the backend `web`.
fn shop(hosts: &[&str]) -> Web {
    let target = |host: &&str| PoolTarget {
        host: (*host).to_owned(),
        port: None,
        weight: 1,
        max_requests: None,
    };
    let pool = web::Pool {
        targets: hosts.iter().map(target).collect(),
        ..web::Pool::default()
    };
    let forward = Forward {
        pool: "shop".into(),
        backend: Some("web".into()),
        rewrite: None,
    };
    let mut config = Web::default();
    config.pools.insert("shop".into(), pool);
    config.backends.insert("web".into(), Backend::default());
    config.rules.insert("shop".into(), rule(Action::Forward(forward)));
    config
}

fn rule(action: Action) -> Rule {
    Rule {
        listeners: vec!["main".into()],
        hosts: Vec::new(),
        priority: 1,
        action,
        paths: Vec::new(),
        guard: Guard::default(),
        error_pages: BTreeMap::new(),
        request_headers: HeaderPolicy::default(),
        response_headers: HeaderPolicy::default(),
        max_body: None,
        compress: false,
        unusual_fields: UnusualFields::default(),
    }
}
