//! OpenSSH through listeners of TCP and TLS, which understand nothing of it.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;

use super::peer::run;
use super::random::{assert_same, octets};
use super::sshd::Sshd;
use crate::support::{Gateway, Setup};

#[test]
fn ssh_and_scp_pass_in_clear_and_within_the_tls_of_openssl() {
    let sshd = Sshd::start();
    let gateway = Gateway::start(&Setup::default().section(&format!(
        "[listener.ssh]\nprotocol = \"tcp\"\nbind = [\"127.0.0.3:0\"]\n\
         [listener.ssh-tls]\nprotocol = \"tls\"\ncertificates = [\"own\"]\nbind = [\"127.0.0.4:0\"]\n\
         [rule.ssh]\nlisteners = [\"ssh\", \"ssh-tls\"]\npriority = 1\npool = \"ssh\"\n\
         [pool.ssh]\ntargets = [\"{}\"]",
        sshd.address
    )));
    let at = |ip: &str| -> SocketAddr {
        let ip: std::net::IpAddr = ip.parse().unwrap();
        let addresses = gateway.addresses();
        *addresses.iter().find(|address| address.ip() == ip).unwrap()
    };
    let in_clear = at("127.0.0.3");
    let port = format!("Port={}", in_clear.port());
    let s_client = format!(
        "ProxyCommand=openssl s_client -quiet -verify_quiet -verify_return_error -CAfile '{}' -verify_hostname gw.test \
         -servername gw.test -connect {}",
        gateway.chain().display(),
        at("127.0.0.4")
    );
    let sent = octets(1, TEN_MEBIBYTES);
    let stored = sshd.folder().join("stored");
    fs::write(&stored, &sent).unwrap();
    for (way, option) in [("clear", &port), ("tls", &s_client)] {
        let client = |program: &str| -> Command {
            let mut client = sshd.client(program);
            client.arg("-o").arg(option);
            client
        };
        let said = run(client("ssh").args(["127.0.0.3", "echo", "hello"]));
        assert_eq!(said, "hello\n", "{way}");
        let fetched = sshd.folder().join(way);
        run(client("scp")
            .arg("-q")
            .arg(format!("127.0.0.3:{}", stored.display()))
            .arg(&fetched));
        assert_same(&fs::read(&fetched).unwrap(), &sent);
        let up = format!("{}.{way}", stored.display());
        run(client("scp").arg("-q").arg(&fetched).arg(format!("127.0.0.3:{up}")));
        assert_same(&fs::read(up).unwrap(), &sent);
    }
    gateway.wait_for("the last passage closed", |line| {
        line["message"] == "passage closed"
            && line["listener"] == "ssh-tls"
            && line["received"].as_u64() > Some(10 << 20)
    });
}

const TEN_MEBIBYTES: usize = 10 * 1024 * 1024;
