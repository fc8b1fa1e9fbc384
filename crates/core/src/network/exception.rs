//! Exceptions in the server's configuration that let sandboxes reach non-public addresses.

use super::{Host, NetworkTarget, host};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// `host:port`, an address, or a range of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AddressException {
    HostPort(NetworkTarget),
    Range { first: IpAddr, prefix_length: u8 },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither `host:port`, an address nor a range like 10.1.0.0/16")]
pub struct InvalidException(pub String);

impl FromStr for AddressException {
    type Err = InvalidException;

    fn from_str(text: &str) -> Result<Self, InvalidException> {
        let bad = || InvalidException(text.to_owned());
        if let Some((address, length)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            let plain = (1..=3).contains(&length.len()) && length.bytes().all(|byte| byte.is_ascii_digit());
            let length: u8 = length.parse().ok().filter(|_| plain).ok_or_else(bad)?;
            // Host bits in a range are probably a mistake: reject them.
            let exact = mask_address(address, length).is_some_and(|masked| masked == address);
            return exact.then_some(Self::Range { first: address, prefix_length: length }).ok_or_else(bad);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Range { first: address, prefix_length: address_bits(address) });
        }
        if host::split_host_port(text).is_none_or(|(_, port)| port.is_none()) {
            return Err(bad());
        }
        NetworkTarget::parse(text, None).map(Self::HostPort).ok_or_else(bad)
    }
}

impl fmt::Display for AddressException {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostPort(target) => target.fmt(f),
            Self::Range { first, prefix_length: length } => write!(f, "{first}/{length}"),
        }
    }
}

const fn address_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// Returns the first address of the range, or nothing if the prefix length is invalid.
fn mask_address(address: IpAddr, length: u8) -> Option<IpAddr> {
    let free = u32::from(address_bits(address).checked_sub(length)?);
    Some(match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & u32::MAX.checked_shl(free).unwrap_or(0)).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & u128::MAX.checked_shl(free).unwrap_or(0)).into(),
    })
}

impl AddressException {
    /// Returns true if a connection requested as `target` may go to this address.
    pub fn covers(&self, target: &NetworkTarget, address: IpAddr) -> bool {
        match self {
            Self::HostPort(NetworkTarget { host: Host::Name(name), port }) => {
                target.port == *port && matches!(&target.host, Host::Name(target_name) if target_name == name)
            }
            Self::HostPort(NetworkTarget { host: Host::Address(place), port }) => {
                target.port == *port && place.to_canonical() == address.to_canonical()
            }
            Self::Range { first, prefix_length: length } => {
                mask_address(address.to_canonical(), *length).is_some_and(|it| it == *first)
            }
        }
    }
}
