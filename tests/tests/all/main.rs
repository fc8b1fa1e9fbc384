//! One test binary for all end-to-end tests.

mod architecture;
mod flow;
mod follow;
mod inbox;
mod paging;
mod store;
