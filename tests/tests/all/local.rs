//! Real sandboxes on this machine, with the demo agent at work in them.

mod bombs;
mod canary;
mod disk;
mod ends;
mod files;
mod fork;
mod inside;
mod isolation;
mod kill;
mod landlock;
mod limits;
mod many;
mod messages;
mod network;
mod pause;
mod pool;
mod restart;
mod root;
mod secrets;
mod shell;
mod standing;
mod storm;
mod terminal;
mod tier;
mod user;
mod work;
pub mod worker;
