//! Lists of networks.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Networks, to ask whether one of them has an address. Logarithmic in their number.
///
/// An IPv4 address that is written as an IPv6 one (`::ffff:a.b.c.d`) is the IPv4 address, in a network as in a question;
/// `::/0` has no IPv4 address.
#[derive(Clone, Debug, Default)]
pub struct Networks {
    v4: Ranges<Ipv4Addr>,
    v6: Ranges<Ipv6Addr>,
}

impl Networks {
    /// The networks.
    pub fn new<'a>(networks: impl IntoIterator<Item = &'a IpNet>) -> Self {
        let (mut v4, mut v6) = (Vec::new(), Vec::new());
        for network in networks {
            match (network.network().to_canonical(), network.broadcast().to_canonical()) {
                (IpAddr::V4(first), IpAddr::V4(last)) => v4.push((first, last)),
                (IpAddr::V6(first), IpAddr::V6(last)) => v6.push((first, last)),
                // One that begins before the mapped addresses and ends at their end, or the like: IPv6 by its name.
                _ => v6.extend(as_written(network)),
            }
        }
        Self {
            v4: Ranges::new(v4),
            v6: Ranges::new(v6),
        }
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.v4.0.is_empty() && self.v6.0.is_empty()
    }

    /// Whether one of them has the address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(address) => self.v4.contain(address),
            IpAddr::V6(address) => self.v6.contain(address),
        }
    }
}

fn as_written(network: &IpNet) -> Option<(Ipv6Addr, Ipv6Addr)> {
    match network {
        IpNet::V4(_) => None,
        IpNet::V6(network) => Some((network.network(), network.broadcast())),
    }
}

/// From the first to the last address each, in order, none of which overlap.
#[derive(Clone, Debug)]
struct Ranges<A>(Box<[(A, A)]>);

impl<A: Ord + Copy> Ranges<A> {
    fn new(mut ranges: Vec<(A, A)>) -> Self {
        ranges.sort_unstable();
        let mut apart: Vec<(A, A)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match apart.last_mut() {
                Some(before) if first <= before.1 => before.1 = last.max(before.1),
                _ => apart.push((first, last)),
            }
        }
        Self(apart.into_boxed_slice())
    }

    fn contain(&self, address: A) -> bool {
        let after = self.0.partition_point(|(first, _)| *first <= address);
        self.0[..after].last().is_some_and(|(_, last)| address <= *last)
    }
}

impl<A> Default for Ranges<A> {
    fn default() -> Self {
        Self(Box::default())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn networks(texts: &[&str]) -> Networks {
        let networks: Vec<IpNet> = texts.iter().map(|text| text.parse().unwrap()).collect();
        Networks::new(&networks)
    }

    #[test]
    fn an_address_is_found_in_any_form() {
        let some = networks(&["10.1.2.3/8", "::ffff:192.0.2.0/120", "2001:db8::/32"]);
        for inside in [
            "10.0.0.0",
            "10.255.255.255",
            "::ffff:10.9.9.9",
            "192.0.2.255",
            "2001:db8:ffff::1",
        ] {
            assert!(some.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["9.255.255.255", "11.0.0.0", "192.0.3.0", "2001:db9::", "::"] {
            assert!(!some.contains(outside.parse().unwrap()), "{outside}");
        }
        assert!(!some.is_empty() && networks(&[]).is_empty());
        assert!(!networks(&[]).contains("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn ipv6_as_a_whole_has_no_ipv4() {
        for wide in ["::/0", "::/64", "::fffe:0:0/95"] {
            assert!(!networks(&[wide]).contains("192.0.2.1".parse().unwrap()), "{wide}");
        }
        assert!(networks(&["::/0"]).contains("2001:db8::1".parse().unwrap()));
        assert!(networks(&["::ffff:0:0/96"]).contains("192.0.2.1".parse().unwrap()));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn they_say_what_each_in_turn_says(
            some in proptest::collection::vec((0..64_u32, 20..=32_u8, any::<bool>()), 0..12),
            asked in proptest::collection::vec((0..64_u32, any::<bool>()), 40),
        ) {
            let v4 = |n: u32| Ipv4Addr::from(0x0A00_0000 + n * 0x81);
            let v6 = |n: u32| Ipv6Addr::from((0x2001_0DB8 << 96) + (u128::from(n * 0x81) << 96 >> 32));
            let some: Vec<IpNet> = some.iter().map(|(n, length, is_v4)| {
                if *is_v4 {
                    IpNet::new(v4(*n).into(), *length).unwrap()
                } else {
                    IpNet::new(v6(*n).into(), length * 4 - 32).unwrap()
                }
            }).collect();
            let networks = Networks::new(&some);
            for (n, is_v4) in asked {
                let address: IpAddr = if is_v4 { v4(n).into() } else { v6(n).into() };
                let naive = some.iter().any(|network| network.contains(&address));
                prop_assert_eq!(networks.contains(address), naive, "{}", address);
            }
        }
    }
}
