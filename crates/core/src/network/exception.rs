//! What the server's configuration lets sandboxes reach although it is not public.

use super::{Host, Target, host};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// `host:port`, an address, or a range of addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exception {
    Place(Target),
    Range { first: IpAddr, length: u8 },
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither `host:port`, an address nor a range like 10.1.0.0/16")]
pub struct BadException(pub String);

impl FromStr for Exception {
    type Err = BadException;

    fn from_str(text: &str) -> Result<Self, BadException> {
        let bad = || BadException(text.to_owned());
        if let Some((address, length)) = text.split_once('/') {
            let address: IpAddr = address.parse().map_err(|_| bad())?;
            let plain = (1..=3).contains(&length.len()) && length.bytes().all(|byte| byte.is_ascii_digit());
            let length: u8 = length.parse().ok().filter(|_| plain).ok_or_else(bad)?;
            // Bits behind the length are a slip of whoever wrote it: they meant another range.
            let exact = masked(address, length).is_some_and(|masked| masked == address);
            return exact.then_some(Self::Range { first: address, length }).ok_or_else(bad);
        }
        if let Ok(address) = text.parse::<IpAddr>() {
            return Ok(Self::Range { first: address, length: bits(address) });
        }
        if host::split(text).is_none_or(|(_, port)| port.is_none()) {
            return Err(bad());
        }
        Target::parse(text, None).map(Self::Place).ok_or_else(bad)
    }
}

impl fmt::Display for Exception {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Place(target) => target.fmt(f),
            Self::Range { first, length } => write!(f, "{first}/{length}"),
        }
    }
}

const fn bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

/// The first address of the range that this one is in; nothing if there is no such length.
fn masked(address: IpAddr, length: u8) -> Option<IpAddr> {
    let free = u32::from(bits(address).checked_sub(length)?);
    Some(match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & u32::MAX.checked_shl(free).unwrap_or(0)).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & u128::MAX.checked_shl(free).unwrap_or(0)).into(),
    })
}

impl Exception {
    /// Whether a connection that was asked for as `target` may go to this address.
    pub fn covers(&self, target: &Target, address: IpAddr) -> bool {
        match self {
            Self::Place(Target { host: Host::Name(name), port }) => {
                target.port == *port && matches!(&target.host, Host::Name(asked) if asked == name)
            }
            Self::Place(Target { host: Host::Address(place), port }) => {
                target.port == *port && place.to_canonical() == address.to_canonical()
            }
            Self::Range { first, length } => masked(address.to_canonical(), *length).is_some_and(|it| it == *first),
        }
    }
}
