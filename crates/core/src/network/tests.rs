use super::*;
use std::net::IpAddr;

fn target(text: &str) -> NetworkTarget {
    NetworkTarget::parse(text, Some(443)).unwrap_or_else(|| panic!("{text} is a target"))
}

fn allow(entries: &[&str]) -> NetworkRule {
    let allow = entries.iter().map(|entry| (*entry).to_owned()).collect();
    NetworkRule::new(&Network { policy: NetworkPolicy::Allow, allow }, &[]).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn names_are_normalised() {
    let parsed = |text: &str| Host::parse(text).map(|host| host.to_string());
    assert_eq!(parsed("EXAMPLE.org."), Ok("example.org".into()));
    assert_eq!(parsed("a_b.xn--bcher-kva.example"), Ok("a_b.xn--bcher-kva.example".into()));
    assert_eq!(parsed("[::1]"), Ok("[::1]".into()));
    assert_eq!(parsed("2001:DB8::1"), Ok("[2001:db8::1]".into()));
    assert_eq!(parsed("10.1.2.3"), Ok("10.1.2.3".into()));
    assert_eq!(parsed("1.example"), Ok("1.example".into()));
    let long = format!("{}.x", "a".repeat(64));
    for bad in ["", ".", "a..b", ".a", "-a.b", "a-.b", "bücher.example", "a b", "a\0b", "a%00b", "a@b", "[::1", &long]
    {
        assert!(Host::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn rejects_ambiguous_addresses() {
    for odd in [
        "127.1",
        "127.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0.0.1",
        "0177.0.0.1",
        "127.0.0.01",
        "1.2.3.4.5",
        "256.1.1.1",
        "example.123",
        "example.0x1f",
        "127.0.0.0x1",
        "0x",
        "1.2.3.4..",
        "[::1%lo]",
        "::1%1",
        "[127.0.0.1]",
    ] {
        assert!(Host::parse(odd).is_err(), "{odd}");
    }
    // One trailing dot is part of a fully qualified name.
    assert_eq!(Host::parse("127.0.0.1."), Host::parse("127.0.0.1"));
}

#[test]
fn parses_targets() {
    assert_eq!(target("example.org:8080").to_string(), "example.org:8080");
    assert_eq!(target("[::1]:80").to_string(), "[::1]:80");
    assert_eq!(target("example.org").port, 443);
    for bad in ["example.org:", "example.org:0", "example.org:65536", "example.org:+1", "::1:80", "a:b:1", "[::1]x", ""]
    {
        assert_eq!(NetworkTarget::parse(bad, Some(443)), None, "{bad}");
    }
    assert_eq!(NetworkTarget::parse("example.org", None), None);
}

#[test]
fn an_entry_permits_only_its_hosts_and_ports() {
    let rule = allow(&["Example.org", "*.pkg.dev", "db.internal:5432", "*.net:8443", "192.0.2.7", "[2001:db8::7]:99"]);
    for good in [
        "example.org:443",
        "example.org:80",
        "EXAMPLE.ORG.:443",
        "a.pkg.dev",
        "a.b.pkg.dev:80",
        "db.internal:5432",
        "x.net:8443",
        "192.0.2.7:80",
        "[2001:db8::7]:99",
    ] {
        assert!(rule.permits(&target(good)), "{good}");
    }
    for bad in [
        "example.org:8080",
        "www.example.org",
        "example.org.evil.com",
        "notexample.org",
        "pkg.dev",
        "apkg.dev",
        "db.internal:443",
        "x.net:443",
        "net:8443",
        "192.0.2.8:80",
        "[2001:db8::7]:443",
        "[::ffff:192.0.2.7]:80",
    ] {
        assert!(!rule.permits(&target(bad)), "{bad}");
    }
}

#[test]
fn none_permits_nothing_and_all_permits_everything() {
    let rule = |policy| NetworkRule::new(&Network { policy, allow: vec![] }, &[]).unwrap();
    assert!(!rule(NetworkPolicy::None).permits(&target("example.org")));
    assert!(!rule(NetworkPolicy::Allow).permits(&target("example.org")));
    assert!(rule(NetworkPolicy::All).permits(&target("example.org:22")));
}

#[test]
fn a_bad_entry_explains_the_error() {
    let parse_error = |text: &str| AllowEntry::parse(text).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(parse_error("https://example.org").contains("without a scheme"));
    assert!(parse_error("*").contains("policy `all`"));
    for star in ["a.*.org", "*.*.org", "*org", "exa*mple.org", "*.10.0.0.1", "example.*"] {
        assert!(parse_error(star).contains('*'), "{star}");
        assert!(AllowEntry::parse(star).is_err(), "{star}");
    }
    assert!(parse_error("example.org:http").contains("65535"));
    assert!(parse_error("127.1").contains("four decimal numbers"));
    for bad in ["", " ", "a b", "a/b", "user@host", "::1", "*.", "*.:80", "example.org:0"] {
        assert!(AllowEntry::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn exceptions_cover_hosts_and_ranges() {
    let covers = |exception: &str, host: &str, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        exception.parse::<AddressException>().unwrap().covers(&target(host), address)
    };
    assert!(covers("git.corp:8443", "git.corp:8443", "10.0.0.1"));
    assert!(!covers("git.corp:8443", "git.corp:443", "10.0.0.1"));
    assert!(!covers("git.corp:8443", "evil.corp:8443", "10.0.0.1"));
    assert!(covers("10.0.0.1:80", "any.name:80", "10.0.0.1"));
    assert!(!covers("10.0.0.1:80", "any.name:81", "10.0.0.1"));
    assert!(covers("10.1.0.0/16", "x.y:1", "10.1.255.255") && !covers("10.1.0.0/16", "x.y:1", "10.2.0.0"));
    assert!(covers("10.1.0.0/16", "x.y:1", "::ffff:10.1.0.1"));
    assert!(covers("0.0.0.0/0", "x.y:1", "10.1.0.1") && !covers("0.0.0.0/0", "x.y:1", "fd00::1"));
    assert!(covers("fd00::/8", "x.y:1", "fd12::1") && covers("::1", "x.y:1", "::1"));
    for bad in ["", "host", "10.1.2.3/16", "10.0.0.0/33", "10.0.0.0/+8", "host/8", "host:0", "127.1:80", "*.x:80"] {
        assert!(bad.parse::<AddressException>().is_err(), "{bad}");
    }
}
