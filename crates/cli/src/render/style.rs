//! Colours by meaning.

use anstyle::{AnsiColor, Style};
use atoll_core::event::kind;

pub const HEAD: Style = Style::new().bold();
pub const FAINT: Style = Style::new().dimmed();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const WARN: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default();
pub const NAME: Style = AnsiColor::Cyan.on_default();

/// The style of a state.
pub fn state_style(word: &str) -> Style {
    match word {
        "running" | "creating" | "pending" | "completing" | "queued" | "leased" => NAME,
        "completed" | "succeeded" | "acknowledged" | "open" | "ok" => GOOD,
        "failed" | "fail" | "undeliverable" => BAD,
        "cancelled" | "delivered_unconfirmed" | "warn" | "closed" => WARN,
        _ => Style::new(),
    }
}

/// The style of an event type.
pub fn event_style(event_type: &str) -> Style {
    match event_type {
        kind::AGENT_FAILED
        | kind::AGENT_ERROR
        | kind::AGENT_STREAM_ERROR
        | kind::SANDBOX_FAILED
        | kind::SERVICE_FAILED
        | kind::WORKER_LOST
        | kind::WORKER_REJECTED => BAD,
        kind::MESSAGE_UNDELIVERABLE | kind::MESSAGE_UNCONFIRMED | kind::AGENT_INTERRUPTED | kind::SERVICE_EXITED => {
            WARN
        }
        kind::AGENT_COMPLETED | kind::SANDBOX_COMPLETED => GOOD,
        _ if event_type.starts_with("agent.") => NAME,
        _ => FAINT,
    }
}
