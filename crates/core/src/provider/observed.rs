//! Observation of a provider's calls, such as to count them.

use super::{Error, Provider, SandboxLookup};
use crate::sandbox::ProviderKind;
use std::sync::Arc;

/// Ends the observation of a call, with the code of its failure. It is dropped if the caller gives the call up.
pub type CallEnd = Box<dyn FnOnce(Option<&'static str>) + Send>;

/// Observes every call of a provider.
pub trait ObserveCalls: Send + Sync {
    fn begin_call(&self, provider: ProviderKind, operation: &'static str) -> CallEnd;
}

/// A provider whose calls are observed.
pub struct ObservedProvider {
    pub(super) inner: Arc<dyn Provider>,
    pub(super) observer: Arc<dyn ObserveCalls>,
}

impl ObservedProvider {
    pub fn new(inner: Arc<dyn Provider>, observer: Arc<dyn ObserveCalls>) -> Self {
        Self { inner, observer }
    }
}

/// The result of a provider's method.
pub(super) trait CallResult {
    /// The code of the failure, if the call failed.
    fn failure_code(&self) -> Option<&'static str>;
}

impl<T> CallResult for Result<T, Error> {
    fn failure_code(&self) -> Option<&'static str> {
        self.as_ref().err().map(Error::code)
    }
}

impl CallResult for SandboxLookup {
    fn failure_code(&self) -> Option<&'static str> {
        match self {
            Self::Found(_) | Self::Gone => None,
            Self::Unreachable { .. } => Some(Error::UNREACHABLE_CODE),
        }
    }
}

impl CallResult for bool {
    fn failure_code(&self) -> Option<&'static str> {
        None
    }
}
