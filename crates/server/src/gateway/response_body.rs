//! The body of a response on its way to a sandbox: metered, and without the real key.

use super::charge::Charge;
use super::key_mask::KeyMask;
use axum::body::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

pub struct ResponseBody {
    /// Taken when the body is dropped.
    inner: Option<Incoming>,
    /// `None` for a request that is free.
    charge: Option<Charge>,
    mask: KeyMask,
}

impl ResponseBody {
    pub const fn new(inner: Incoming, charge: Option<Charge>, mask: KeyMask) -> Self {
        Self { inner: Some(inner), charge, mask }
    }

    /// Meters a polled frame.
    fn meter(charge: &mut Option<Charge>, frame: Option<&Frame<Bytes>>, is_end: bool) {
        let Some(charge) = charge else { return };
        if let Some(data) = frame.and_then(Frame::data_ref) {
            charge.scan_usage(data);
        }
        // With a known length, hyper does not poll after the last frame.
        if is_end {
            charge.mark_complete();
        }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Self { inner: Some(inner), charge, mask } = &mut *self else { return Poll::Ready(None) };
        loop {
            let frame = match std::task::ready!(Pin::new(&mut *inner).poll_frame(cx)) {
                Some(Ok(frame)) => frame,
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    Self::meter(charge, None, true);
                    return Poll::Ready(mask.finish().map(|rest| Ok(Frame::data(rest))));
                }
            };
            let is_end = inner.is_end_stream();
            Self::meter(charge, Some(&frame), is_end);
            // The APIs send no trailers.
            let Ok(data) = frame.into_data() else { continue };
            let mut passed = mask.mask(data);
            if is_end && let Some(rest) = mask.finish() {
                passed = [passed, rest].concat().into();
            }
            if !passed.is_empty() || is_end {
                return Poll::Ready(Some(Ok(Frame::data(passed))));
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Incoming::is_end_stream) && self.mask.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let Some(inner) = &self.inner else { return SizeHint::with_exact(0) };
        let (hint, held) = (inner.size_hint(), self.mask.held_bytes());
        let mut size = SizeHint::new();
        if let Some(upper) = hint.upper() {
            size.set_upper(upper.saturating_add(held));
        }
        size.set_lower(hint.lower().saturating_add(held));
        size
    }
}

impl Drop for ResponseBody {
    /// Reads the rest of a response whose client is gone, because its end reports the usage.
    fn drop(&mut self) {
        let (Some(inner), Some(charge)) = (self.inner.take(), self.charge.take()) else { return };
        let Some(timeout) = charge.time_for_the_rest() else { return };
        let Some(slot) = charge.budget.unclaimed_slot() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(read_the_rest(inner, charge, slot, timeout));
    }
}

async fn read_the_rest(mut inner: Incoming, mut charge: Charge, slot: OwnedSemaphorePermit, timeout: Duration) {
    let stop = charge.stop_signal();
    let reading = async {
        loop {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut inner).poll_frame(cx)).await;
            match frame {
                Some(Ok(frame)) => charge.scan_usage(frame.data_ref().map_or(&[], |data| data)),
                Some(Err(_)) => return,
                None => return charge.mark_complete(),
            }
        }
    };
    tokio::select! {
        _ = tokio::time::timeout(timeout, reading) => {}
        () = wait_for_stop(stop) => {}
    }
    drop((charge, slot));
}

/// Waits until the server stops.
pub async fn wait_for_stop(stop: Option<tokio::sync::watch::Receiver<bool>>) {
    let Some(mut stop) = stop else { return };
    // An error means that the gateway is gone.
    let _ = stop.wait_for(|is_stopping| *is_stopping).await;
}
