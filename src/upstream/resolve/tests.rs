use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::*;

#[tokio::test(start_paused = true)]
async fn a_name_is_asked_for_again_when_its_records_expire() {
    let rig = Rig::new(Family::Has(vec![one()], Duration::from_secs(60)));
    rig.run_for(1).await;
    assert_eq!((rig.asked(), rig.moved()), (1, 1));
    rig.run_for(58).await;
    assert_eq!(rig.asked(), 1);
    rig.run_for(6).await;
    assert_eq!((rig.asked(), rig.moved()), (2, 1));
    rig.say(Family::Has(vec![one(), two()], Duration::from_secs(60)));
    rig.run_for(65).await;
    assert_eq!((rig.asked(), rig.moved()), (3, 2));
    assert_eq!(rig.known.lock().addresses(), [one(), two()]);
}

#[tokio::test(start_paused = true)]
async fn what_was_last_known_stays_in_use_and_is_asked_for_ever_less_often() {
    let rig = Rig::new(Family::Has(vec![one()], Duration::from_secs(1)));
    rig.run_for(1).await;
    rig.say(Family::HasNone(DnsFault::NoSuchName));
    rig.run_for(600).await;
    assert!((20..32).contains(&rig.asked()), "{} times", rig.asked());
    assert_eq!((rig.moved(), rig.known.lock().addresses()), (1, vec![one()]));
    let view = NameView::of("shop.example", &rig.known.lock(), clock::now());
    let (fault, for_) = view.fault.unwrap();
    assert_eq!((fault, for_.as_secs() / 10), (DnsFault::NoSuchName, 59));
}

#[tokio::test(start_paused = true)]
async fn other_name_servers_are_asked_at_once() {
    let rig = Rig::new(Family::Has(vec![one()], Duration::from_secs(3600)));
    rig.run_for(5).await;
    let other = Arc::new(Fake::new(Family::Has(vec![two()], Duration::from_secs(3600))));
    rig.whom.send_replace(other);
    rig.run_for(0).await;
    assert_eq!((rig.moved(), rig.known.lock().addresses()), (2, vec![two()]));
}

#[tokio::test(start_paused = true)]
async fn the_longest_life_of_a_record_is_an_hour() {
    let rig = Rig::new(Family::Has(vec![one()], Duration::from_secs(86_400)));
    rig.run_for(3601).await;
    assert_eq!(rig.asked(), 2);
}

#[tokio::test]
async fn a_name_server_says_all_addresses_and_how_long_they_hold() {
    let server = Server::start().await;
    server.has("shop.example", &[one(), two(), six()]);
    let answer = ask(&Servers::these(&[server.address]), "shop.example").await;
    let hold = Duration::from_secs(77);
    let Answer {
        v4: Family::Has(mut v4, v4_holds),
        v6,
    } = answer
    else {
        panic!("{answer:?}");
    };
    v4.sort_unstable();
    assert_eq!((v4, v4_holds), (vec![one(), two()], hold));
    assert_eq!(v6, Family::Has(vec![six()], hold));
}

#[tokio::test]
async fn an_answer_is_never_an_old_one() {
    let server = Server::start().await;
    let servers = Servers::these(&[server.address]);
    server.has("shop.example", &[one()]);
    assert_eq!(addresses(&servers, "shop.example").await, [one()]);
    server.has("shop.example", &[two()]);
    assert_eq!(addresses(&servers, "shop.example").await, [two()]);
}

#[tokio::test]
async fn no_such_name_is_told_from_no_address_and_from_refusal() {
    let server = Server::start().await;
    let servers = Servers::these(&[server.address]);
    server.has("empty.example", &[]);
    server.has("four.example", &[one()]);
    let none = |fault| Answer {
        v4: Family::HasNone(fault),
        v6: Family::HasNone(fault),
    };
    assert_eq!(ask(&servers, "no.such.example").await, none(DnsFault::NoSuchName));
    assert_eq!(ask(&servers, "empty.example").await, none(DnsFault::NoAddress));
    assert_eq!(
        ask(&servers, "four.example").await.v6,
        Family::HasNone(DnsFault::NoAddress)
    );
    let refused = ask(&servers, "refused.example").await;
    assert_eq!(refused.v4, Family::Failed(DnsFault::Refused));
    let nonsense = ask(&servers, "a name with blanks").await;
    assert!(
        matches!(nonsense.v4, Family::HasNone(_) | Family::Failed(_)),
        "{nonsense:?}"
    );
}

#[tokio::test]
async fn the_file_of_hosts_comes_first_and_changes_at_once() {
    let folder = TempDir::new().unwrap();
    let server = Server::start().await;
    server.has("shop.example", &[two()]);
    let hosts = folder.path().join("hosts");
    let servers = Servers::these(&[server.address]).with_files(hosts.clone(), folder.path().join("none"));
    assert_eq!(addresses(&servers, "shop.example").await, [two()]);
    std::fs::write(&hosts, "10.0.0.1 shop.example\n").unwrap();
    assert_eq!(addresses(&servers, "shop.example").await, [one()]);
}

#[tokio::test]
async fn a_system_without_name_servers_says_so() {
    let folder = TempDir::new().unwrap();
    let resolv_conf = folder.path().join("resolv.conf");
    let servers = Servers::of_the_system().with_files(folder.path().join("hosts"), resolv_conf.clone());
    let none = Family::Failed(DnsFault::NoServer);
    assert_eq!(ask(&servers, "shop.example").await.v4, none);
    std::fs::write(&resolv_conf, "# nothing\nsearch example\n").unwrap();
    assert_eq!(ask(&servers, "shop.example").await.v4, none);
}

async fn ask(servers: &Servers, name: &str) -> Answer {
    let patience = Duration::from_secs(20);
    timeout(patience, servers.ask(name)).await.unwrap()
}

async fn addresses(servers: &Servers, name: &str) -> Vec<IpAddr> {
    let mut known = Name::default();
    known.note(ask(servers, name).await, clock::now());
    known.addresses()
}

fn one() -> IpAddr {
    [10, 0, 0, 1].into()
}

fn two() -> IpAddr {
    [10, 0, 0, 2].into()
}

fn six() -> IpAddr {
    [0xfd00, 0, 0, 0, 0, 0, 0, 1].into()
}

/// A name that is followed, in virtual time.
struct Rig {
    fake: Arc<Fake>,
    whom: watch::Sender<Arc<dyn Ask>>,
    known: Arc<Mutex<Name>>,
    moved: Arc<AtomicUsize>,
}

impl Rig {
    fn new(says: Family) -> Self {
        let fake = Arc::new(Fake::new(says));
        let (whom, asked) = watch::channel::<Arc<dyn Ask>>(fake.clone());
        let rig = Self {
            fake,
            whom,
            known: Arc::default(),
            moved: Arc::default(),
        };
        let moved = {
            let moved = rig.moved.clone();
            move |is_moved| _ = moved.fetch_add(usize::from(is_moved), Ordering::Relaxed)
        };
        let following = follow("shop.example".into(), rig.known.clone(), asked, Dice(1), moved);
        #[expect(clippy::disallowed_methods, reason = "it ends with the test")]
        tokio::spawn(following);
        rig
    }

    async fn run_for(&self, seconds: u64) {
        // A millisecond more, so that what is due then has happened.
        sleep(Duration::from_secs(seconds) + Duration::from_millis(1)).await;
    }

    fn say(&self, family: Family) {
        *self.fake.says.lock() = family;
    }

    fn asked(&self) -> usize {
        self.fake.asked.load(Ordering::Relaxed)
    }

    fn moved(&self) -> usize {
        self.moved.load(Ordering::Relaxed)
    }
}

/// A name server that says the same of every name.
#[derive(Debug)]
struct Fake {
    says: Mutex<Family>,
    asked: AtomicUsize,
}

impl Fake {
    fn new(says: Family) -> Self {
        Self {
            says: Mutex::new(says),
            asked: AtomicUsize::new(0),
        }
    }
}

impl Ask for Fake {
    fn ask<'a>(&'a self, _name: &'a str) -> Pin<Box<dyn Future<Output = Answer> + Send + 'a>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let v4 = self.says.lock().clone();
        let v6 = Family::HasNone(DnsFault::NoAddress);
        let v6 = if matches!(v4, Family::Has(..)) { v6 } else { v4.clone() };
        Box::pin(std::future::ready(Answer { v4, v6 }))
    }
}

/// A name server over UDP (RFC 1035): A and AAAA of a few names.
struct Server {
    address: SocketAddr,
    records: Arc<Mutex<HashMap<String, Vec<IpAddr>>>>,
}

impl Server {
    async fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let server = Self {
            address: socket.local_addr().unwrap(),
            records: Arc::default(),
        };
        let records = server.records.clone();
        #[expect(clippy::disallowed_methods, reason = "a peer of a test, which ends with it")]
        tokio::spawn(async move {
            let mut query = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut query).await {
                let answer = Self::answer(&query[..length], &records.lock());
                let _ = socket.send_to(&answer, from).await;
            }
        });
        server
    }

    fn has(&self, name: &str, addresses: &[IpAddr]) {
        self.records.lock().insert(name.to_owned(), addresses.to_vec());
    }

    fn answer(query: &[u8], records: &HashMap<String, Vec<IpAddr>>) -> Vec<u8> {
        let (mut at, mut labels) = (12, Vec::new());
        while query[at] != 0 {
            let end = at + 1 + usize::from(query[at]);
            labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_ascii_lowercase());
            at = end;
        }
        let question = &query[12..at + 5];
        let wants_six = query[at + 2] == 28;
        let name = labels.join(".");
        let addresses: Vec<_> = records
            .get(&name)
            .into_iter()
            .flatten()
            .filter(|address| address.is_ipv6() == wants_six)
            .collect();
        let code = match records.get(&name) {
            _ if name == "refused.example" => 5,
            Some(_) => 0,
            None => 3,
        };
        let mut answer = query[..2].to_vec();
        answer.extend([0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0]);
        answer.extend(question);
        for address in addresses {
            answer.extend([0xc0, 12, 0, query[at + 2], 0, 1, 0, 0, 0, 77]);
            match address {
                IpAddr::V4(address) => {
                    answer.extend([0, 4]);
                    answer.extend(address.octets());
                }
                IpAddr::V6(address) => {
                    answer.extend([0, 16]);
                    answer.extend(address.octets());
                }
            }
        }
        answer
    }
}
