//! Removes the real key from a response: an upstream may echo the headers of a request.

use axum::body::Bytes;
use axum::http::{HeaderMap, HeaderValue};
use secrecy::{ExposeSecret, SecretString};

/// Shorter keys could be ordinary words of a response.
const MIN_MASKED_BYTES: usize = 8;
const MASK_BYTE: u8 = b'*';

/// Replaces the key in a stream of bytes, also where it is split. The length of the stream stays.
#[derive(Default)]
pub struct KeyMask {
    key: Option<SecretString>,
    /// The end of the stream so far, if the key may begin in it.
    held: Vec<u8>,
}

impl KeyMask {
    pub fn new(key: Option<&SecretString>) -> Self {
        let key = key.filter(|key| key.expose_secret().len() >= MIN_MASKED_BYTES).cloned();
        Self { key, held: Vec::new() }
    }

    /// Returns the bytes that can be passed on.
    pub fn mask(&mut self, data: Bytes) -> Bytes {
        let Some(key) = &self.key else { return data };
        let key = key.expose_secret().as_bytes();
        if self.held.is_empty() && find(&data, key).is_none() && count_held(&data, key) == 0 {
            return data;
        }
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(&data);
        mask_all(&mut bytes, key);
        self.held = bytes.split_off(bytes.len() - count_held(&bytes, key));
        bytes.into()
    }

    /// Returns the held bytes at the end of the stream.
    pub fn finish(&mut self) -> Option<Bytes> {
        (!self.held.is_empty()).then(|| std::mem::take(&mut self.held).into())
    }

    pub const fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub const fn held_bytes(&self) -> u64 {
        self.held.len() as u64
    }

    /// Masks the key in the values of headers.
    pub fn mask_headers(&self, headers: &mut HeaderMap) {
        let Some(key) = &self.key else { return };
        let key = key.expose_secret().as_bytes();
        for value in headers.values_mut() {
            if find(value.as_bytes(), key).is_some() {
                let mut bytes = value.as_bytes().to_vec();
                mask_all(&mut bytes, key);
                *value = HeaderValue::from_bytes(&bytes).unwrap_or_else(|_| HeaderValue::from_static(""));
            }
        }
    }
}

pub(super) fn find(bytes: &[u8], key: &[u8]) -> Option<usize> {
    let (first, mut from) = (*key.first()?, 0);
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        let at = from + at;
        if bytes.get(at..)?.starts_with(key) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

fn mask_all(bytes: &mut [u8], key: &[u8]) {
    let mut from = 0;
    while let Some(at) = bytes.get(from..).and_then(|rest| find(rest, key)) {
        let end = from + at + key.len();
        if let Some(found) = bytes.get_mut(from + at..end) {
            found.fill(MASK_BYTE);
        }
        from = end;
    }
}

/// The number of bytes at the end that are a beginning of the key.
pub(super) fn count_held(bytes: &[u8], key: &[u8]) -> usize {
    let most = bytes.len().min(key.len().saturating_sub(1));
    (1..=most).rev().find(|count| key.starts_with(&bytes[bytes.len() - count..])).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KEY: &str = "sk-ant-sk-4711";

    fn mask_pieces(pieces: &[&[u8]]) -> Vec<u8> {
        let mut mask = KeyMask::new(Some(&KEY.into()));
        let mut all: Vec<u8> = pieces.iter().flat_map(|piece| mask.mask(Bytes::copy_from_slice(piece))).collect();
        all.extend(mask.finish().unwrap_or_default());
        assert!(mask.is_empty());
        all
    }

    #[test]
    fn masks_the_key_in_headers_and_body() {
        let text = format!("{{\"x-api-key\": \"{KEY}\"}}{KEY}{KEY} sk-ant-");
        let masked = String::from_utf8(mask_pieces(&[text.as_bytes()])).unwrap();
        assert_eq!(masked, format!("{{\"x-api-key\": \"{0}\"}}{0}{0} sk-ant-", "*".repeat(KEY.len())));
        let mut headers = HeaderMap::new();
        headers.insert("x-echo", format!("Bearer {KEY}").parse().unwrap());
        headers.insert("request-id", "req_1".parse().unwrap());
        KeyMask::new(Some(&KEY.into())).mask_headers(&mut headers);
        assert_eq!(headers["x-echo"], format!("Bearer {}", "*".repeat(KEY.len())));
        assert_eq!(headers["request-id"], "req_1");
    }

    #[test]
    fn a_short_key_and_no_key_change_nothing() {
        for key in [None, Some(SecretString::from("test"))] {
            let mut mask = KeyMask::new(key.as_ref());
            assert_eq!(mask.mask(Bytes::from_static(b"a test of tes")), &b"a test of tes"[..]);
            assert!(mask.is_empty() && mask.finish().is_none());
        }
    }

    proptest! {
        #[test]
        fn a_split_key_is_masked(before in "[skant47x-]{0,20}", after in "[skant47x-]{0,20}", mut cuts in prop::collection::vec(0..60_usize, 0..6)) {
            let text = format!("{before}{KEY}{after}");
            cuts.sort_unstable();
            let (mut pieces, mut from) = (Vec::new(), 0);
            for cut in cuts.into_iter().map(|cut| cut.min(text.len())) {
                pieces.push(&text.as_bytes()[from..cut]);
                from = cut;
            }
            pieces.push(&text.as_bytes()[from..]);
            let masked = mask_pieces(&pieces);
            prop_assert_eq!(masked.len(), text.len());
            prop_assert!(find(&masked, KEY.as_bytes()).is_none());
            prop_assert_eq!(mask_pieces(&[text.as_bytes()]), masked);
        }
    }
}
