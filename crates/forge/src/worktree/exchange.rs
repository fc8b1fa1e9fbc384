//! Sync-in when it is uncertain which state the sandbox has: an interrupted command may have sent more than it recorded.

use super::{PreparedSync, Worktree, WorktreeState, state};
use crate::error::Error;

/// An error of an exchange with a sandbox.
pub trait ExchangeError: From<Error> {
    /// True if the sandbox does not have the state that the request builds on.
    fn is_base_mismatch(&self) -> bool;
}

impl Worktree {
    /// Sends the worktree on top of the newest state that the sandbox has. Returns the new record, the sandbox's response
    /// and warnings.
    pub fn sync_in<T, E: ExchangeError>(
        &self,
        state: &WorktreeState,
        sandbox: &str,
        mut send: impl FnMut(&mut PreparedSync<'_>) -> Result<T, E>,
    ) -> Result<(WorktreeState, T, Vec<String>), E> {
        let mut bases = state.possible_bases(sandbox).into_iter().peekable();
        let mut base = bases.next().flatten();
        loop {
            let mut sync = self.prepare_sync(base)?;
            let unconfirmed = state.with_unconfirmed(sandbox, sync.commit());
            state::write_lazily(&self.dir, &unconfirmed, self.repository.owner)?;
            match send(&mut sync) {
                Err(error) if error.is_base_mismatch() && bases.peek().is_some() => base = bases.next().flatten(),
                sent => {
                    let sent = sent?;
                    self.record_sent(&sync)?;
                    return Ok((self.confirm_base(state, sandbox, sync.commit())?, sent, sync.warnings));
                }
            }
        }
    }

    /// Records a state that both sides have.
    pub fn confirm_base(&self, state: &WorktreeState, sandbox: &str, base: &str) -> Result<WorktreeState, Error> {
        let next = state.with_base(sandbox, base);
        if next != *state {
            self.write_state(&next)?;
        }
        Ok(next)
    }
}
