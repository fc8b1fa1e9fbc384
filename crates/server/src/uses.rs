//! Use of sandboxes by people: open terminals, commands and previews. A used sandbox is not idle.

use atoll_core::id::SandboxId;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default, Clone, Copy)]
struct SandboxUse {
    /// Open terminals, commands and streams.
    open: usize,
    /// It was used since the last flush.
    is_recent: bool,
}

/// Uses since the last flush. A sweep stores them, so that other servers and a later one know them.
#[derive(Debug, Default)]
pub struct SandboxUses(Mutex<HashMap<SandboxId, SandboxUse>>);

impl SandboxUses {
    fn lock(&self) -> MutexGuard<'_, HashMap<SandboxId, SandboxUse>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a use without a duration.
    pub fn touch(&self, sandbox: SandboxId) {
        self.lock().entry(sandbox).or_default().is_recent = true;
    }

    /// Records a use that lasts until the guard is dropped.
    pub fn begin(self: &Arc<Self>, sandbox: SandboxId) -> UseGuard {
        self.lock().entry(sandbox).or_default().open += 1;
        UseGuard { uses: Arc::clone(self), sandbox }
    }

    pub fn is_in_use(&self, sandbox: SandboxId) -> bool {
        self.lock().get(&sandbox).is_some_and(|used| used.open > 0 || used.is_recent)
    }

    /// Returns the sandboxes that are or were in use since the last call.
    pub fn take_used(&self) -> Vec<SandboxId> {
        let mut all = self.lock();
        let used = all.keys().copied().collect();
        all.retain(|_, used| {
            used.is_recent = false;
            used.open > 0
        });
        used
    }
}

/// A use of a sandbox until dropped.
#[derive(Debug)]
pub struct UseGuard {
    uses: Arc<SandboxUses>,
    sandbox: SandboxId,
}

impl Drop for UseGuard {
    fn drop(&mut self) {
        let mut all = self.uses.lock();
        if let Some(used) = all.get_mut(&self.sandbox) {
            used.open = used.open.saturating_sub(1);
            used.is_recent = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_use_counts_until_it_was_flushed_after_its_end() {
        let uses = Arc::new(SandboxUses::default());
        let (one, other) = (SandboxId::new(), SandboxId::new());
        let guard = uses.begin(one);
        uses.touch(other);
        assert!(uses.is_in_use(one) && uses.is_in_use(other));
        assert_eq!(uses.take_used().len(), 2);
        assert!(uses.is_in_use(one) && !uses.is_in_use(other));
        assert_eq!(uses.take_used(), [one], "it is still open");
        drop(guard);
        assert_eq!(uses.take_used(), [one], "its end is a use");
        assert!(uses.take_used().is_empty() && !uses.is_in_use(one));
    }
}
