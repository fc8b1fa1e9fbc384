//! Real sandboxes on this machine, with the demo agent at work in them.

mod canary;
mod ends;
mod inside;
mod isolation;
mod kill;
mod limits;
mod many;
mod messages;
mod restart;
mod shell;
mod terminal;
mod user;
mod work;
mod worker;
