//! The body of a download: counted, without the token, and with the registry's origin replaced by the gateway's.

use super::key_mask::{KeyMask, count_held, find};
use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming};
use std::pin::Pin;
use std::task::{Context, Poll};

/// Counts received bytes. Returns false at the sandbox's byte limit.
pub type DownloadCounter = Box<dyn Fn(usize) -> bool + Send + Sync>;

pub struct DownloadBody {
    inner: Incoming,
    mask: KeyMask,
    rewriter: Option<OriginRewriter>,
    count: DownloadCounter,
    is_done: bool,
}

impl DownloadBody {
    pub fn new(inner: Incoming, mask: KeyMask, rewriter: Option<OriginRewriter>, count: DownloadCounter) -> Self {
        Self { inner, mask, rewriter, count, is_done: false }
    }

    fn transform(&mut self, data: Bytes) -> Bytes {
        let data = self.mask.mask(data);
        match &mut self.rewriter {
            Some(rewriter) => rewriter.rewrite(&data),
            None => data,
        }
    }

    fn finish(&mut self) -> Bytes {
        let held = self.mask.finish().unwrap_or_default();
        match &mut self.rewriter {
            Some(rewriter) => [rewriter.rewrite(&held), rewriter.finish()].concat().into(),
            None => held,
        }
    }
}

impl Body for DownloadBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        while !self.is_done {
            let frame = match std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.is_done = true;
                    let rest = self.finish();
                    return Poll::Ready((!rest.is_empty()).then(|| Ok(Frame::data(rest))));
                }
            };
            let Ok(data) = frame.into_data() else { continue };
            if !(self.count)(data.len()) {
                self.is_done = true;
                break;
            }
            let passed = self.transform(data);
            if !passed.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
        Poll::Ready(None)
    }
}

/// Replaces one text in a stream of bytes by another, also where it is split.
pub struct OriginRewriter {
    from: Vec<u8>,
    to: Vec<u8>,
    /// The end of the stream so far, if the text may begin in it.
    held: Vec<u8>,
}

impl OriginRewriter {
    pub fn new(from: &str, to: &str) -> Self {
        Self { from: from.as_bytes().to_vec(), to: to.as_bytes().to_vec(), held: Vec::new() }
    }

    /// Returns the bytes that can be passed on.
    pub fn rewrite(&mut self, data: &[u8]) -> Bytes {
        let mut bytes = std::mem::take(&mut self.held);
        bytes.extend_from_slice(data);
        let (mut passed, mut rest) = (Vec::with_capacity(bytes.len()), bytes.as_slice());
        while let Some(at) = find(rest, &self.from) {
            passed.extend_from_slice(&rest[..at]);
            passed.extend_from_slice(&self.to);
            rest = &rest[at + self.from.len()..];
        }
        let (whole, held) = rest.split_at(rest.len() - count_held(rest, &self.from));
        passed.extend_from_slice(whole);
        self.held = held.to_vec();
        passed.into()
    }

    /// Returns the held bytes at the end of the stream.
    pub fn finish(&mut self) -> Bytes {
        std::mem::take(&mut self.held).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rewrite_pieces(pieces: &[&[u8]]) -> Vec<u8> {
        let mut rewriter = OriginRewriter::new("https://r.example", "http://in");
        let mut all: Vec<u8> = pieces.iter().flat_map(|piece| rewriter.rewrite(piece)).collect();
        all.extend(rewriter.finish());
        all
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(cuts in proptest::collection::vec(0_usize..60, 0..6)) {
            let text = b"a https://r.example/x https://r.examplehttps://https://r.example";
            let mut cuts: Vec<usize> = cuts.into_iter().chain([0, text.len()]).collect();
            cuts.sort_unstable();
            let pieces: Vec<&[u8]> = cuts.windows(2).map(|pair| &text[pair[0]..pair[1]]).collect();
            prop_assert_eq!(rewrite_pieces(&pieces), b"a http://in/x http://inhttps://http://in".to_vec());
        }
    }
}
