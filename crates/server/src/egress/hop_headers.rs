//! Hop-by-hop headers.

use axum::http::HeaderMap;
use axum::http::header::{CONNECTION, HeaderName, HeaderValue, TE, UPGRADE};

/// The protocol of a WebSocket upgrade request. Other upgrades are refused: HTTP/2 requests could name other hosts.
pub fn requested_upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let asks = headers.get_all(CONNECTION).iter().filter_map(|value| value.to_str().ok());
    let asks = asks.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("upgrade"));
    headers.get(UPGRADE).filter(|to| asks && to.as_bytes().eq_ignore_ascii_case(b"websocket")).cloned()
}

/// Removes the headers that `Connection` names, the standard hop-by-hop headers, and proxy headers. Keeps the upgrade to
/// `keeping`, if there is one.
pub fn strip_hop_headers(headers: &mut HeaderMap, keeping: Option<&HeaderValue>) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|word| word.trim().parse().ok())
        .collect();
    let to_proxies = headers.keys().filter(|name| name.as_str().starts_with("proxy-")).cloned();
    let always =
        [CONNECTION, TE, UPGRADE].into_iter().chain(["keep-alive", "http2-settings"].map(HeaderName::from_static));
    // `Connection` must not remove framing headers.
    let removed: Vec<HeaderName> =
        named.into_iter().filter(|name| !is_framing(name)).chain(to_proxies).chain(always).collect();
    for name in removed {
        headers.remove(name);
    }
    if let Some(protocol) = keeping {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, protocol.clone());
    }
}

fn is_framing(name: &HeaderName) -> bool {
    ["content-length", "transfer-encoding", "host"].contains(&name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn removes_hop_by_hop_headers() {
        let mut map = headers(&[
            ("connection", "close, X-Mine"),
            ("connection", "content-length"),
            ("x-mine", "1"),
            ("keep-alive", "timeout=5"),
            ("proxy-authorization", "Basic x"),
            ("proxy-connection", "keep-alive"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("content-length", "3"),
            ("accept", "*/*"),
        ]);
        assert_eq!(requested_upgrade(&map), None);
        assert_eq!(requested_upgrade(&headers(&[("connection", "upgrade, http2-settings"), ("upgrade", "h2c")])), None);
        strip_hop_headers(&mut map, None);
        let mut left: Vec<_> = map.keys().map(|name| name.as_str().to_owned()).collect();
        left.sort();
        assert_eq!(left, ["accept", "content-length"]);
    }

    #[test]
    fn keeps_a_websocket_upgrade() {
        let mut map = headers(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]);
        let upgrade = requested_upgrade(&map);
        assert_eq!(upgrade.as_ref().and_then(|it| it.to_str().ok()), Some("websocket"));
        strip_hop_headers(&mut map, upgrade.as_ref());
        assert_eq!(
            (&map[CONNECTION], &map[UPGRADE]),
            (&HeaderValue::from_static("upgrade"), &HeaderValue::from_static("websocket"))
        );
    }
}
