//! Counts and times the calls of providers.

use super::{PROVIDER_CALL_SECONDS, PROVIDER_FAILURES, record_seconds};
use atoll_core::provider::observed::{CallEnd, ObserveCalls};
use atoll_core::sandbox::ProviderKind;
use std::time::Instant;

/// The code of a call whose caller gave up, such as at its time limit.
pub const CANCELLED: &str = "cancelled";

#[derive(Debug)]
pub struct ProviderCallMeter;

/// Records the call when it is dropped.
struct RunningCall {
    provider: ProviderKind,
    operation: &'static str,
    began: Instant,
    failure: Option<&'static str>,
}

impl ObserveCalls for ProviderCallMeter {
    fn begin_call(&self, provider: ProviderKind, operation: &'static str) -> CallEnd {
        let running = RunningCall { provider, operation, began: Instant::now(), failure: Some(CANCELLED) };
        Box::new(move |failure| {
            let mut call = running;
            call.failure = failure;
        })
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let provider = self.provider.as_str();
        let labels = [("provider", provider), ("operation", self.operation)];
        record_seconds(PROVIDER_CALL_SECONDS, &labels, self.began.elapsed());
        if let Some(code) = self.failure {
            metrics::counter!(PROVIDER_FAILURES, "provider" => provider, "code" => code).increment(1);
        }
    }
}
