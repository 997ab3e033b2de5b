//! Two nodes behind the balancers that people have, with the very configurations of docs/load-balancers.md, and with the one
//! that is widely copied and wrong.

use std::collections::BTreeSet;

use self::rig::{Client, Fleet, HaProxy, Nginx, Node, all};
use crate::support::authority::Authority;

mod rig;

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
