//! A scripted model that drives the real agent programs without a real model.
//!
//! It serves the Anthropic Messages API, OpenAI's chat completions and Responses, and Gemini's `generateContent`. A
//! script is a list of abstract steps (`script`); each becomes a call of a tool that the request offers (`tools`). The
//! next step is derived from the conversation in the request (`decision`) and not stored, so retries, resumed and
//! forked sessions and steering messages are safe.
//!
//! ```text
//! request ─► wire::read ─► decision::decide ─► wire::write ─► server streams it
//!                            (pure)             (pure)        └─► record
//! ```

mod answer;
mod code_mode;
mod conversation;
mod decision;
mod file_commands;
mod request_log;
pub mod script;
mod scripted_model;
mod server;
mod step_forms;
mod tools;
mod wire;

pub use request_log::{RecordedRequest, RequestOutcome};
pub use script::{Script, Scripts};
pub use scripted_model::{Error, ListenOptions, ScriptedModel};
