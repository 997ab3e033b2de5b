//! A name server that says what the test says.

use std::collections::HashMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// What is known under a name.
#[derive(Clone, Debug)]
pub enum Record {
    /// These addresses, for so many seconds.
    Addresses(Vec<Ipv4Addr>, u32),
    /// An address for a minute, told so much later.
    Late(Ipv4Addr, Duration),
    /// There is no such name.
    NoSuchName,
    /// Nothing is answered.
    Silence,
}

/// The name server, on a UDP port of its own.
pub struct Names {
    pub address: SocketAddr,
    records: Arc<Mutex<HashMap<String, Record>>>,
    asked: Arc<AtomicUsize>,
}

impl Names {
    pub fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let records: Arc<Mutex<HashMap<String, Record>>> = Arc::default();
        let asked = Arc::new(AtomicUsize::new(0));
        let (known, count) = (records.clone(), asked.clone());
        std::thread::spawn(move || {
            let mut buffer = [0; 1500];
            while let Ok((length, from)) = socket.recv_from(&mut buffer) {
                count.fetch_add(1, Ordering::SeqCst);
                if let Some(answer) = answer(&buffer[..length], &known.lock()) {
                    let _ = socket.send_to(&answer, from);
                }
            }
        });
        Self {
            address,
            records,
            asked,
        }
    }

    /// What is answered for a name from now on.
    pub fn set(&self, name: &str, record: Record) {
        self.records.lock().insert(name.to_owned(), record);
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// RFC 1035 section 4: the head, the question again, and an answer for each address.
fn answer(query: &[u8], records: &HashMap<String, Record>) -> Option<Vec<u8>> {
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let length = usize::from(*query.get(at)?);
        if length == 0 {
            break;
        }
        labels.push(String::from_utf8_lossy(query.get(at + 1..at + 1 + length)?).to_ascii_lowercase());
        at += 1 + length;
    }
    let question = query.get(12..at + 5)?;
    let is_for_ipv4 = query.get(at + 1..at + 3)? == [0, 1];
    let (code, addresses, ttl) = match records.get(&labels.join(".")) {
        Some(Record::Silence) => return None,
        Some(Record::Late(address, delay)) => {
            std::thread::sleep(*delay);
            (0, is_for_ipv4.then_some(*address).into_iter().collect(), 60)
        }
        Some(Record::Addresses(addresses, ttl)) if is_for_ipv4 => (0, addresses.clone(), *ttl),
        Some(Record::Addresses(..)) => (0, Vec::new(), 0),
        Some(Record::NoSuchName) | None => (3, Vec::new(), 0),
    };
    let mut answer = query.get(..2)?.to_vec();
    answer.extend([
        0x81,
        0x80 | code,
        0,
        1,
        0,
        u8::try_from(addresses.len()).ok()?,
        0,
        0,
        0,
        0,
    ]);
    answer.extend_from_slice(question);
    for address in addresses {
        answer.extend([0xc0, 12, 0, 1, 0, 1]);
        answer.extend(ttl.to_be_bytes());
        answer.extend([0, 4]);
        answer.extend(address.octets());
    }
    Some(answer)
}
