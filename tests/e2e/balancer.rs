//! Two nodes behind the balancers that people have, with the very configurations of docs/load-balancers.md, and with the one
//! that is widely copied and wrong.

use std::collections::BTreeSet;

use self::rig::{Client, Fleet, HaProxy, Nginx, Node, all};
use crate::support::authority::Authority;

pub(super) mod rig;

/// What many copy: each port has a table and a TCP check of its own, and nobody is told who the client is.
const WIDESPREAD: &str = "
global
    stats socket /run/haproxy/admin.sock mode 600 level admin
defaults
    mode tcp
    timeout connect 5s
    timeout client 30s
    timeout server 30s
frontend f443
    bind 192.0.2.10:443
    default_backend nodes_443
backend nodes_443
    balance source
    stick-table type ip size 1m expire 30m
    stick on src
    default-server check inter 2s fall 2 rise 2
    server gw-1 10.0.0.11:443
    server gw-2 10.0.0.12:443
frontend f8443
    bind 192.0.2.10:8443
    default_backend nodes_8443
backend nodes_8443
    balance source
    stick-table type ip size 1m expire 30m
    stick on src
    default-server check inter 2s fall 2 rise 2
    server gw-1 10.0.0.11:8443
    server gw-2 10.0.0.12:8443
";

const CLIENTS: u8 = 40;

#[test]
fn haproxy_as_documented_misroutes_nobody_whatever_happens_to_the_nodes() {
    let mut fleet = Fleet::start(|_, node| node.listener("balancers = [\"127.0.0.1\"]\n"));
    let mut haproxy = HaProxy::start(&fleet, &rig::documented("haproxy"));
    for node in Node::BOTH {
        haproxy.wait_for("nodes_443", node, "UP");
    }

    let mut clients = all(1..=CLIENTS, |number| fleet.sign_in(number));
    let mut tunnels = all(0..CLIENTS, |at| {
        let client = &clients[usize::from(at)];
        fleet.tunnel(client, fleet.second).expect("admitted")
    });
    let at_one = clients.iter().filter(|client| client.node == Node::One).count();
    assert!((5..=35).contains(&at_one), "the load is shared: {at_one} of 40");
    let from = format!("127.0.1.{}:", clients[0].number);
    let line = fleet
        .gateway(clients[0].node)
        .wait_for("the client's own address", |line| {
            line["client"].as_str().is_some_and(|client| client.starts_with(&from))
        });
    assert!(!line.is_null());

    // Quiesced: nobody new comes, and whoever is there stays, with all that they open.
    fleet.operator(Node::One, &["quiesce", "on"]);
    haproxy.wait_for("nodes_443", Node::One, "NOLB");
    haproxy.wait_for("nodes_8443", Node::One, "NOLB");
    let newcomers = all(101..=106, |number| fleet.sign_in(number));
    assert!(newcomers.iter().all(|client| client.node == Node::Two), "{newcomers:?}");
    for tunnel in &mut tunnels {
        assert!(tunnel.speaks(), "cut");
    }
    let stay: Vec<_> = clients
        .iter()
        .filter(|client| client.node == Node::One)
        .take(8)
        .collect();
    for client in stay {
        let again = fleet.announce_again(client);
        assert_eq!(again.node, Node::One, "a further control connection found its node");
        assert!(fleet.tunnel(&again, fleet.second).is_some(), "and a further tunnel");
    }
    fleet.operator(Node::One, &["quiesce", "off"]);
    haproxy.wait_for("nodes_443", Node::One, "UP");
    haproxy.wait_for("nodes_8443", Node::One, "UP");

    // Stopped: its users sign in elsewhere, and find what they open there.
    fleet.stop(Node::Two);
    haproxy.wait_for("nodes_443", Node::Two, "DOWN");
    haproxy.wait_for("nodes_8443", Node::Two, "DOWN");
    clients.retain(|client| client.node == Node::Two);
    let numbers: Vec<_> = clients.iter().map(|client| client.number).collect();
    assert_eq!(misrouted(&fleet, &numbers, Some(Node::One)), BTreeSet::new());

    // Back again: they stay where they are by now.
    fleet.restart(Node::Two);
    haproxy.wait_for("nodes_443", Node::Two, "UP");
    haproxy.wait_for("nodes_8443", Node::Two, "UP");
    assert_eq!(misrouted(&fleet, &numbers, None), BTreeSet::new());
    assert_eq!(fleet.findings(Node::One), [""; 0]);
    assert_eq!(fleet.findings(Node::Two), [""; 0]);
}

#[test]
fn the_widespread_configuration_misroutes_and_the_nodes_name_the_fault() {
    let fleet = Fleet::start(|_, node| node);
    let mut haproxy = HaProxy::start(&fleet, WIDESPREAD);
    for node in Node::BOTH {
        haproxy.wait_for("nodes_443", node, "UP");
        haproxy.wait_for("nodes_8443", node, "UP");
    }
    let clients = all(1..=CLIENTS, |number| fleet.sign_in(number));
    let numbers: Vec<_> = (1..=CLIENTS).collect();
    let admitted = all(0..CLIENTS, |at| {
        fleet.tunnel(&clients[usize::from(at)], fleet.second).is_some()
    });
    assert!(
        admitted.iter().all(|admitted| *admitted),
        "as long as all is well, all is well"
    );
    let of_one: BTreeSet<_> = clients
        .iter()
        .filter(|client| client.node == Node::One)
        .map(|client| client.number)
        .collect();
    assert!(of_one.len() >= 5, "the load is shared: {of_one:?}");

    fleet.close_first_port(Node::One);
    haproxy.wait_for("nodes_443", Node::One, "DOWN");
    assert_eq!(misrouted(&fleet, &numbers, Some(Node::Two)), of_one);
    fleet.open_first_port(Node::One);
    haproxy.wait_for("nodes_443", Node::One, "UP");
    assert_eq!(
        misrouted(&fleet, &numbers, Some(Node::Two)),
        of_one,
        "and it does not mend by itself"
    );

    let local = format!("127.0.0.11:{}", fleet.second);
    let one = fleet.gateway(Node::One);
    let lines = one.lines();
    let refused: Vec<_> = lines
        .iter()
        .filter(|line| line["reason"] == "sister_node" && line["step"] == "grant")
        .collect();
    assert_eq!(refused.len(), 2 * of_one.len());
    assert!(
        refused
            .iter()
            .all(|line| line["owner"] == "gw-2" && line["local"] == local.as_str() && line["level"] == "WARN")
    );
    let told = one.wait_for("the finding", |line| line["finding"] == "affinity_lost");
    let words = told["message"].as_str().unwrap();
    assert!(
        words.starts_with(&format!(
            "A valid grant of gw-2 arrived at gw-1 on {local} from no listed balancer"
        )),
        "{words}"
    );
    assert!(words.contains("Give both ports one affinity table"), "{words}");
    assert_eq!(fleet.findings(Node::One), ["affinity_lost"]);
    fleet
        .gateway(Node::Two)
        .wait_for("the crowd behind one address", |line| {
            let words = line["message"].as_str().unwrap_or_default();
            line["finding"] == "lb_snat_detected" && words.contains("users signed in from 127.0.0.1 within")
        });
}

#[test]
fn with_the_peer_relay_even_the_widespread_configuration_cuts_nobody() {
    let (authority, ports) = (Authority::default(), rig::free_ports());
    let fleet = Fleet::start(|node, setup| setup.section(&rig::relay(&authority, node, ports)));
    let mut haproxy = HaProxy::start(&fleet, WIDESPREAD);
    for node in Node::BOTH {
        haproxy.wait_for("nodes_443", node, "UP");
        haproxy.wait_for("nodes_8443", node, "UP");
    }
    let numbers: Vec<_> = (1..=CLIENTS).collect();
    let of_one = all(1..=CLIENTS, |number| fleet.sign_in(number).node == Node::One);
    let of_one = of_one.iter().filter(|is| **is).count();
    assert!(of_one >= 5, "the load is shared: {of_one} of 40");

    fleet.close_first_port(Node::One);
    haproxy.wait_for("nodes_443", Node::One, "DOWN");
    assert_eq!(misrouted(&fleet, &numbers, Some(Node::Two)), BTreeSet::new());
    let carried = |node, line: &dyn Fn(&serde_json::Value) -> bool| {
        let lines = fleet.gateway(node).lines();
        lines.iter().filter(|each| line(each)).count()
    };
    let brought = carried(Node::One, &|line| {
        line["message"] == "connection carried to its own node" && line["owner"] == "gw-2"
    });
    assert_eq!(brought, of_one, "those who would have been cut");
    fleet
        .gateway(Node::Two)
        .wait_for("the other half", |line| line["relayed_by"] == "gw-1");
    // It costs a hop, and the operator still learns why.
    let told = fleet
        .gateway(Node::One)
        .wait_for("the finding", |line| line["finding"] == "affinity_lost");
    assert!(!told.is_null());
}

#[test]
fn nginx_as_documented_brings_everything_to_its_node_by_port_groups() {
    let ports = Nginx::ports();
    let mut fleet = Fleet::start(|node, setup| {
        let port = ports[if node == Node::One { 1 } else { 2 }];
        let url = format!("[tunnel]\nexternal_url = \"https://127.0.0.10:{port}\"\n");
        setup.listener("balancers = [\"127.0.0.1\"]\n").section(&url)
    });
    let _nginx = Nginx::start(&fleet, &rig::documented("nginx"), ports);
    let came_to_its_node = |client: &Client| fleet.tunnel(client, client.told).is_some();
    let clients = all(1..=16, |number| fleet.sign_in_at(number, ports[0]));
    assert!(clients.iter().all(came_to_its_node));
    for node in Node::BOTH {
        assert!(clients.iter().any(|client| client.node == node), "the load is shared");
    }
    fleet.stop(Node::Two);
    let clients = all(1..=16, |number| fleet.sign_in_at(number, ports[0]));
    assert!(
        clients
            .iter()
            .all(|client| client.node == Node::One && fleet.tunnel(client, client.told).is_some())
    );
    assert_eq!(fleet.findings(Node::One), [""; 0]);
}

/// How HAProxy takes a node out that simply answers 503, unless it is told otherwise.
const PLAIN: &str = "    option httpchk GET /favicon.ico
    http-check expect status 200
    default-server check check-ssl verify none check-send-proxy send-proxy-v2 inter 2s fall 2 rise 2
";

const DISCLAIMER: &str = "[authentication]\ndisclaimer = \"For authorised users only.\"\n";

/// Nodes that are quiesced in one of the ways, behind HAProxy that checks them by these lines.
fn quiesced_as(quiesce: &str, lines: &str) -> (Fleet, HaProxy) {
    let fleet = Fleet::start(|_, node| {
        node.listener("balancers = [\"127.0.0.1\"]\n")
            .section(DISCLAIMER)
            .section(&format!("[quiesce]\n{quiesce}"))
    });
    let mut haproxy = HaProxy::start(&fleet, &rig::checked_by(lines));
    for node in Node::BOTH {
        haproxy.wait_for("nodes_443", node, "UP");
    }
    (fleet, haproxy)
}

/// What becomes of users in two screens of whom some are through, when the first node is quiesced in the middle.
struct Crossing {
    /// Signed in before, with open tunnels.
    settled: Vec<(Client, rig::Tunnel)>,
    /// Half-way through at the first node.
    half_done: usize,
    cookies: Vec<String>,
}

impl Crossing {
    fn begin(fleet: &Fleet) -> Self {
        let settled = all(1..=20, |number| {
            let client = fleet
                .finish(number, &fleet.begin(number))
                .expect("nothing is in the way");
            let tunnel = fleet.tunnel(&client, fleet.second).expect("admitted");
            (client, tunnel)
        });
        let cookies = all(21..=50, |number| fleet.begin(number));
        let half_done = fleet.half_done(Node::One);
        assert!((5..=25).contains(&half_done), "the load is shared: {half_done} of 30");
        fleet.operator(Node::One, &["quiesce", "on"]);
        Self {
            settled,
            half_done,
            cookies,
        }
    }

    /// How many have to begin anew.
    fn broken(&self, fleet: &Fleet) -> usize {
        let ends = all(0..30, |at| {
            fleet.finish(21 + at, &self.cookies[usize::from(at)]).is_some()
        });
        ends.iter().filter(|is_in| !**is_in).count()
    }

    /// Nobody who was there is cut; and whether those at the first node find it again with what they open next.
    fn find_it_again(&mut self, fleet: &Fleet) -> bool {
        for (client, tunnel) in &mut self.settled {
            assert!(tunnel.speaks(), "cut: {client:?}");
        }
        let mut at_one = self.settled.iter().filter(|(client, _)| client.node == Node::One);
        at_one.all(|(client, _)| fleet.tunnel(&fleet.announce_again(client), fleet.second).is_some())
    }
}

#[test]
fn a_plain_503_breaks_the_sign_ins_that_are_half_done() {
    let (fleet, mut haproxy) = quiesced_as("answer = \"503\"\n", PLAIN);
    let crossing = Crossing::begin(&fleet);
    haproxy.wait_for("nodes_443", Node::One, "DOWN");
    assert_eq!(crossing.broken(&fleet), crossing.half_done);
}

#[test]
fn with_a_503_that_means_nobody_new_none_breaks() {
    let (fleet, mut haproxy) = quiesced_as("answer = \"503\"\n", &rig::documented_check());
    let mut crossing = Crossing::begin(&fleet);
    haproxy.wait_for("nodes_443", Node::One, "NOLB");
    assert_eq!(crossing.broken(&fleet), 0);
    assert!(crossing.find_it_again(&fleet));
}

#[test]
fn with_two_steps_no_sign_in_breaks_and_sessions_stay() {
    let quiesce = "answer = \"two-step\"\nstep = \"1 s\"\n";
    let (fleet, mut haproxy) = quiesced_as(quiesce, &rig::documented("haproxy two-step"));
    let mut crossing = Crossing::begin(&fleet);
    haproxy.wait_for("nodes_443", Node::One, "NOLB");
    let newcomers = all(101..=106, |number| fleet.begin(number));
    assert_eq!(fleet.half_done(Node::One), crossing.half_done, "nobody new comes");
    assert_eq!(newcomers.len(), 6);
    assert!(crossing.find_it_again(&fleet));
    assert_eq!(crossing.broken(&fleet), 0);
    // With the last of them in, the second step follows: nobody is sent there any more.
    haproxy.wait_for("nodes_443", Node::One, "DOWN");
    fleet.operator(Node::One, &["quiesce", "off"]);
    haproxy.wait_for("nodes_443", Node::One, "UP");
}

#[test]
fn with_the_agent_check_no_sign_in_breaks_sessions_stay_and_the_node_empties() {
    let quiesce = "answer = \"agent\"\nagent = [\":9442\"]\nagent_from = [\"127.0.0.1\"]\n";
    let (fleet, mut haproxy) = quiesced_as(quiesce, &rig::documented("haproxy agent"));
    let mut crossing = Crossing::begin(&fleet);
    haproxy.wait_for("nodes_443", Node::One, "DRAIN");
    let newcomers = all(101..=106, |number| fleet.begin(number));
    assert_eq!(fleet.half_done(Node::One), crossing.half_done, "nobody new comes");
    assert_eq!(newcomers.len(), 6);
    assert_eq!(crossing.broken(&fleet), 0);
    assert!(crossing.find_it_again(&fleet));
    // Empty: who sticks to the node goes elsewhere from now on, and comes back with it.
    fleet.end_all(Node::One);
    haproxy.wait_for("nodes_443", Node::One, "MAINT");
    for (client, _) in crossing.settled.iter().filter(|(client, _)| client.node == Node::One) {
        let again = fleet
            .finish(client.number, &fleet.begin(client.number))
            .expect("served elsewhere");
        assert_eq!(again.node, Node::Two);
    }
    fleet.operator(Node::One, &["quiesce", "off"]);
    haproxy.wait_for("nodes_443", Node::One, "UP");
}

/// Has these clients sign in anew and open a tunnel on the second port: those whose tunnel was not admitted.
fn misrouted(fleet: &Fleet, numbers: &[u8], signed_in_at: Option<Node>) -> BTreeSet<u8> {
    let outcomes = all(0..u8::try_from(numbers.len()).unwrap(), |at| {
        let client = fleet.sign_in(numbers[usize::from(at)]);
        assert!(signed_in_at.is_none_or(|node| client.node == node), "{client:?}");
        (client.number, fleet.tunnel(&client, fleet.second).is_none())
    });
    outcomes
        .into_iter()
        .filter_map(|(number, misrouted)| misrouted.then_some(number))
        .collect()
}
