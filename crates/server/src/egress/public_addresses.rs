//! Public addresses of the Internet. The proxy refuses all others: this machine, private networks, cloud metadata
//! services, and IPv6 forms that embed a private IPv4 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 ranges that are not public: first address, prefix length, description.
const NON_PUBLIC_V4: &[(Ipv4Addr, u32, &str)] = &[
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "shared by a provider's customers"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "this machine"),
    (Ipv4Addr::new(168, 63, 129, 16), 32, "a cloud's service for its machines"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local, where clouds keep metadata"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "for documentation"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for measurements"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "for documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// Parts of 2000::/3 that are not public; no IPv6 address outside of 2000::/3 is.
const NON_PUBLIC_V6: &[(Ipv6Addr, u32, &str)] = &[
    // Includes Teredo, which embeds an IPv4 address.
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "reserved"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "for documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "6to4, which carries an IPv4 address"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "for documentation"),
];

/// The description of an address that is not public.
pub fn non_public_range(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => non_public_v4(address),
        IpAddr::V6(address) => non_public_v6(address),
    }
}

fn non_public_v4(address: Ipv4Addr) -> Option<&'static str> {
    let within = |first: Ipv4Addr, length: u32| (address.to_bits() ^ first.to_bits()).leading_zeros() >= length;
    NON_PUBLIC_V4.iter().find(|(first, length, _)| within(*first, *length)).map(|(_, _, what)| *what)
}

fn non_public_v6(address: Ipv6Addr) -> Option<&'static str> {
    if let Some(inner) = address.to_ipv4_mapped() {
        return non_public_v4(inner);
    }
    if address.is_loopback() || address.is_unspecified() {
        return Some("this machine");
    }
    // A NAT64 address embeds the IPv4 address at its end.
    if let [0x64, 0xff9b, 0, 0, 0, 0, high, low] = address.segments() {
        return non_public_v4(Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low)));
    }
    if address.segments()[0] & 0xe000 != 0x2000 {
        return Some("private or reserved");
    }
    let within = |first: Ipv6Addr, length: u32| (address.to_bits() ^ first.to_bits()).leading_zeros() >= length;
    NON_PUBLIC_V6.iter().find(|(first, length, _)| within(*first, *length)).map(|(_, _, what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn public(text: &str) -> bool {
        non_public_range(text.parse().unwrap()).is_none()
    }

    #[test]
    fn accepts_public_addresses() {
        for address in [
            "1.1.1.1",
            "8.8.8.8",
            "11.0.0.1",
            "100.63.255.255",
            "100.128.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "168.63.129.15",
            "192.0.1.1",
            "192.167.255.255",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700::1",
            "2a00:1450::1",
            "2001:4860::8888",
            "64:ff9b::101:101",
            "::ffff:1.1.1.1",
        ] {
            assert!(public(address), "{address}");
        }
    }

    #[test]
    fn rejects_all_other_addresses() {
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "10.0.0.1",
            "10.255.255.255",
            "100.64.0.1",
            "100.100.100.200",
            "127.0.0.1",
            "127.255.255.254",
            "168.63.129.16",
            "169.254.169.254",
            "169.254.170.2",
            "172.16.0.1",
            "172.31.255.255",
            "192.0.0.192",
            "192.0.2.1",
            "192.168.1.1",
            "198.18.0.1",
            "198.19.255.255",
            "203.0.113.80",
            "224.0.0.1",
            "239.1.1.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::127.0.0.1",
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:0:127.0.0.1",
            "64:ff9b::7f00:1",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::101:101",
            "100::1",
            "2001::1",
            "2001:2::1",
            "2001:10::1",
            "2001:20::1",
            "2001:db8::1",
            "2002:7f00:1::",
            "2002:101:101::1",
            "3fff::1",
            "5f00::1",
            "fc00::1",
            "fd00:ec2::254",
            "fe80::1",
            "fec0::1",
            "ff02::1",
            "4000::1",
        ] {
            assert!(!public(address), "{address}");
        }
    }

    proptest! {
        /// An embedded IPv4 address is treated like the address itself.
        #[test]
        fn mapped_and_nat64_forms_are_treated_like_the_ipv4_address(bits: u32) {
            let plain = Ipv4Addr::from_bits(bits);
            let mapped = plain.to_ipv6_mapped();
            let translated = Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, (bits >> 16) as u16, bits as u16);
            let judged = non_public_range(plain.into());
            prop_assert_eq!(non_public_range(mapped.into()), judged);
            prop_assert_eq!(non_public_range(translated.into()), judged);
            // The list covers everything that the standard library calls non-public.
            if plain.is_private() || plain.is_loopback() || plain.is_link_local() || plain.is_broadcast()
                || plain.is_documentation() || plain.is_multicast() || plain.is_unspecified() {
                prop_assert!(judged.is_some());
            }
        }

        #[test]
        fn nothing_outside_of_the_global_unicast_range_is_public(bits: u128) {
            let address = Ipv6Addr::from_bits(bits);
            let is_global_unicast = address.segments()[0] & 0xe000 == 0x2000;
            let dressed = address.to_ipv4_mapped().is_some() || address.segments()[..2] == [0x64, 0xff9b];
            prop_assert!(is_global_unicast || dressed || non_public_range(address.into()).is_some());
        }
    }
}
