//! Makes Linux sandboxes.
