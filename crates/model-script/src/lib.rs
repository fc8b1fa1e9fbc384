//! A model that plays a script: the real agent programs are driven by it, without a real model.
//!
//! It speaks the Anthropic Messages API, OpenAI's chat completions and Responses, and Gemini's `generateContent`.
//! A script is a list of abstract steps (`script`): each becomes a call of a tool that the request at hand offers
//! (`tools`). Which step comes next is read from the conversation in the request (`play`) and not remembered, so
//! that retries, resumed and forked sessions and messages in between are all safe.
//!
//! ```text
//! request ─► wire::read ─► play::decide ─► wire::write ─► server streams it
//!                            (pure)             (pure)        └─► record
//! ```

mod answer;
mod conversation;
mod forms;
mod play;
mod record;
mod running;
pub mod script;
mod server;
mod shell;
mod tools;
mod wire;

pub use record::{Outcome, Request};
pub use running::{Error, Listen, ScriptedModel};
pub use script::{Script, Scripts};
