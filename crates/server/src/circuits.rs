//! The circuit breakers of the providers. Each server has its own: it sees the failures of its own calls.

use crate::problem::{Code, Problem, Result};
use atoll_core::health::circuit_breaker::{Admission, BreakerPolicy, CircuitBreaker, CircuitChange, CircuitState};
use atoll_core::provider::Error;
use atoll_core::sandbox::ProviderKind;
use atoll_core::time::Timestamp;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// One circuit per provider, in the order of `ProviderKind::ALL`.
pub struct Circuits(Vec<Mutex<Circuit>>);

struct Circuit {
    breaker: CircuitBreaker,
    /// The last failure.
    detail: Option<String>,
}

/// What users see of a circuit that is not closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OpenCircuit {
    pub state: CircuitState,
    /// Time until the server tries the provider again, if that is not now.
    pub retry_in: Option<Duration>,
    pub failures: u32,
    pub detail: String,
}

impl OpenCircuit {
    /// The problem of a request that the circuit refuses.
    fn refusal_problem(&self, provider: ProviderKind) -> Problem {
        let seconds = self.retry_in.map_or(1, |delay| delay.as_secs() + 1);
        let detail = format!(
            "the provider {provider} failed {} times in a row, so the server creates no sandbox there for {seconds} s; \
             name another provider, or set the project's fallback_provider",
            self.failures
        );
        Problem::new(Code::ProviderFailing, detail).with("provider", provider.as_str()).retry_after(seconds)
    }
}

impl Circuits {
    pub fn new(policy: BreakerPolicy) -> Self {
        let circuit = |_: &ProviderKind| Mutex::new(Circuit { breaker: CircuitBreaker::new(policy), detail: None });
        Self(ProviderKind::ALL.iter().map(circuit).collect())
    }

    fn lock(&self, provider: ProviderKind) -> MutexGuard<'_, Circuit> {
        self.0[provider as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Describes the provider's circuit unless it is closed.
    pub fn find_open(&self, provider: ProviderKind, now: Timestamp) -> Option<OpenCircuit> {
        let circuit = self.lock(provider);
        let state = circuit.breaker.state();
        (state != CircuitState::Closed).then(|| OpenCircuit {
            state,
            retry_in: circuit.breaker.refused_until(now).map(|until| until.elapsed_since(now)),
            failures: circuit.breaker.failures(),
            detail: circuit.detail.clone().unwrap_or_default(),
        })
    }

    /// Describes the provider's circuit if it refuses a sandbox now.
    pub fn find_refusal(&self, provider: ProviderKind, now: Timestamp) -> Option<OpenCircuit> {
        self.find_open(provider, now).filter(|circuit| circuit.retry_in.is_some())
    }

    /// Chooses the provider of a new sandbox: the wanted one, or the fallback while the wanted one fails.
    pub fn choose_provider(
        &self,
        wanted: ProviderKind,
        fallback: Option<ProviderKind>,
        now: Timestamp,
    ) -> Result<ProviderKind> {
        let Some(circuit) = self.find_refusal(wanted, now) else { return Ok(wanted) };
        match fallback.filter(|fallback| self.find_refusal(*fallback, now).is_none()) {
            Some(fallback) => Ok(fallback),
            None => Err(circuit.refusal_problem(wanted)),
        }
    }

    /// Admits a call that creates a sandbox.
    pub fn admit(&self, provider: ProviderKind, now: Timestamp) -> Admission {
        self.lock(provider).breaker.admit(now)
    }

    /// Records the outcome of a call that creates a sandbox. Only a provider that does not respond counts as
    /// failing: a refusal and an exhausted quota are answers.
    pub fn record_outcome(
        &self,
        provider: ProviderKind,
        failure: Option<&Error>,
        now: Timestamp,
    ) -> Option<CircuitChange> {
        let mut circuit = self.lock(provider);
        match failure {
            Some(error @ Error::Unreachable { .. }) => {
                circuit.detail = Some(error.to_string());
                circuit.breaker.record_failure(now)
            }
            Some(
                Error::Unsupported { .. }
                | Error::Exhausted { .. }
                | Error::Refused { .. }
                | Error::Busy { .. }
                | Error::NoInput { .. }
                | Error::Gone
                | Error::CacheGone { .. },
            )
            | None => {
                circuit.detail = None;
                circuit.breaker.record_response()
            }
        }
    }
}
