//! One test binary for all end-to-end tests.

mod flow;
