//! Whoever operates the fleet, with one command for both nodes; and the service manager of each node.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use portcullis::clock;
use portcullis::types::Thumbprint;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use serde_json::Value;

use super::{PROBE, Serving, Site, has_ended, signal, warnings_of};
use crate::e2e::balancer::rig::{Fleet, Node};
use crate::e2e::upgrade::book::{Book, Times};
use crate::rig::patiently;
use crate::support::{PASSWORD, portcullis, write_private};

/// How `fleet upgrade` changes the program of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::e2e::upgrade) enum Method {
    Handover,
    Restart,
}

impl Site {
    /// Takes both nodes to the next build by the operator's command. It holds all of its checks, or this fails.
    pub(in crate::e2e::upgrade) fn upgrade_all(&self, book: &Book, method: Method) {
        let generation = self
            .serving
            .lock()
            .map(|serving| serving.generation + 1)
            .into_iter()
            .max();
        let generation = generation.unwrap();
        let inventory = self.inventory(generation);
        let before = Node::BOTH.map(|node| self.fleet.lock().gateway(node).line_count());
        let mut command = portcullis();
        command.args(["fleet", "upgrade", "--json", "--patience", "30s", "--method"]);
        match method {
            Method::Handover => command.args(["handover", "--watch", "2s"]),
            // Errors are counted for longer than the balancer takes to see that a node is back.
            Method::Restart => command.args(["restart", "--watch", "5s", "--drain", "2s", "--cut"]),
        };
        command.arg("--inventory").arg(inventory);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let (output, is_over) = (child.stdout.take().unwrap(), AtomicBool::new(false));
        let (events, status) = std::thread::scope(|scope| {
            scope.spawn(|| {
                while method == Method::Restart && !is_over.load(Ordering::SeqCst) {
                    self.start_what_has_ended(book, generation, before);
                    std::thread::sleep(MOMENT);
                }
            });
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            let events: Vec<Value> = lines.map(|line| hear(book, line)).collect();
            let status = child.wait();
            is_over.store(true, Ordering::SeqCst);
            (events, status)
        });
        let told = |event: &str| {
            let of_event = events.iter().filter(|told| told["event"] == event);
            of_event.filter_map(|told| told["name"].as_str()).collect::<Vec<_>>()
        };
        assert_eq!(status.unwrap().code(), Some(0), "{events:#?}");
        let both = Node::BOTH.map(Node::name);
        assert_eq!([told("checked"), told("in_service")], [both, both], "{events:#?}");
        match method {
            Method::Handover => {
                for (node, before) in Node::BOTH.into_iter().zip(before) {
                    let line = self
                        .fleet
                        .lock()
                        .gateway(node)
                        .wait_for_after(before, "handed over", |line| {
                            line["message"]
                                .as_str()
                                .is_some_and(|words| words.starts_with("handed over:"))
                        });
                    self.serves(node, line["pid"].as_u64().unwrap().try_into().unwrap(), generation);
                }
            }
            Method::Restart => assert_eq!([told("cutting"), told("restarting")], [both, both], "{events:#?}"),
        }
    }

    /// Writes the inventory.
    fn inventory(&self, generation: u32) -> PathBuf {
        let folder = self.folder.path();
        let fleet = self.fleet.lock();
        let nodes = Node::BOTH.map(|node| {
            let (gateway, name) = (fleet.gateway(node), node.name());
            let (admin, thumbprint) = gateway.admin_port();
            let shown = CertificateDer::from_pem_file(gateway.chain()).unwrap();
            // One node is told to end, and one is ended by the operator's own means.
            let restart = match node {
                Node::One => String::new(),
                Node::Two => format!("restart = [\"kill\", \"{}\"]\n", self.serving.lock()[node as usize].pid),
            };
            format!(
                "[[node]]\nname = \"{name}\"\nadmin = \"https://{admin}\"\ntoken_file = \"{name}.token\"\n\
                 thumbprint = \"{thumbprint}\"\nurl = \"https://{}:{}\"\nurl_thumbprint = \"{}\"\nbinary = {:?}\n{restart}\
                 login = {{ user = \"{PROBE}\", password_file = \"probe.password\" }}\n\n",
                node.host(),
                self.behind.inner_port,
                Thumbprint::of(&shown).to_hex(),
                self.build(generation),
            )
        });
        let file = folder.join("fleet.toml");
        fs::write(&file, nodes.concat()).unwrap();
        file
    }

    /// What a service manager does once the main process of a node has ended: the processes before it end too, then the node
    /// is started as that build.
    fn start_what_has_ended(&self, book: &Book, generation: u32, before: [usize; 2]) {
        for node in Node::BOTH {
            if !has_ended(self.serving.lock()[node as usize].pid) {
                continue;
            }
            let said = |message: &str| {
                let fleet = self.fleet.lock();
                let is_it = |line: &Value| line["message"] == message;
                let line = fleet
                    .gateway(node)
                    .wait_for_after(before[node as usize], message, is_it);
                (book.moment(line["timestamp"].as_str().unwrap().parse().unwrap()), line)
            };
            let ((drains, line), (drained, _)) = (said("draining"), said("drained"));
            let grace = Duration::from_secs(line["grace_seconds"].as_u64().unwrap());
            let processes = self.processes(node);
            processes.iter().for_each(|pid| signal("TERM", *pid));
            for pid in processes {
                patiently("a process of the node ends", || has_ended(pid));
            }
            let ended = clock::now();
            let mut fleet = self.fleet.lock();
            self.past_warnings.lock().push(warnings_of(fleet.gateway(node)));
            fleet.restart_as(node, &self.build(generation));
            let pid = fleet.gateway(node).pid();
            drop(fleet);
            self.serving.lock()[node as usize] = Serving { pid, generation };
            let times = Times {
                drains,
                cuts: drains + grace - SLACK,
                closes: drained + SLACK,
            };
            book.note_at(drains, format_args!("{} drains", node.name()));
            book.note_at(drained, format_args!("{} takes in nobody", node.name()));
            book.note_at(ended, format_args!("{} has ended", node.name()));
            book.note(format_args!("{} is process {pid}", node.name()));
            book.was_restarted(node, times);
        }
    }
}

/// Puts the operator's secrets in files of their own: a token for each node, and the password of whoever signs in to look.
pub(super) fn write_secrets(folder: &Path, fleet: &Fleet) {
    write_private(&folder.join("probe.password"), PASSWORD);
    for node in Node::BOTH {
        let mut command = fleet
            .gateway(node)
            .operator(&["token", "create", "--name", "fleet", "--scope", "admin"]);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let token = std::str::from_utf8(&output.stdout).unwrap();
        write_private(&folder.join(format!("{}.token", node.name())), token);
    }
}

/// Keeps what the command tells; loads that last for as long as changes do go on with it.
fn hear(book: &Book, line: String) -> Value {
    let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
    let word = |field: &str| event[field].as_str().unwrap_or_default();
    book.note(format_args!("{} {}: {}", word("name"), word("event"), word("words")));
    if matches!(word("event"), "in_service" | "quiesced") {
        book.next_step();
    }
    event
}

/// Between what a node does and what its log says of it.
const SLACK: Duration = Duration::from_millis(100);
const MOMENT: Duration = Duration::from_millis(20);
