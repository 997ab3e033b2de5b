//! The file of hosts, `/etc/hosts` (hosts(5)). Pure.

use std::net::IpAddr;

/// The addresses that a file of hosts has for `name`, which is in any case and may end with a dot. Lines that cannot be
/// read are passed over.
pub(super) fn addresses_in(file: &str, name: &str) -> Vec<IpAddr> {
    let name = name.strip_suffix('.').unwrap_or(name);
    let of_line = |line: &str| {
        let line = line.split('#').next()?;
        let mut words = line.split_ascii_whitespace();
        let address: IpAddr = words.next()?.parse().ok()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    };
    file.lines().filter_map(of_line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_with_the_name_counts() {
        let file = "127.0.0.1 localhost # shop\n10.0.0.1\tshop-1 Shop.Example\n\
                    fd00::1 shop.example\n#10.0.0.2 shop.example\nfe80::1%eth0 shop.example\nnonsense shop.example\n10.0.0.3";
        let expected: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(addresses_in(file, "SHOP.example."), expected);
        assert!(addresses_in(file, "shop").is_empty());
        assert_eq!(addresses_in(file, "shop-1"), expected[..1]);
    }
}
