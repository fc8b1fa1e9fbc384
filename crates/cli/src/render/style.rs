//! The few colours, by what they mean.

use anstyle::{AnsiColor, Style};

pub const HEAD: Style = Style::new().bold();
pub const FAINT: Style = Style::new().dimmed();
pub const GOOD: Style = AnsiColor::Green.on_default();
pub const WARN: Style = AnsiColor::Yellow.on_default();
pub const BAD: Style = AnsiColor::Red.on_default();
pub const NAME: Style = AnsiColor::Cyan.on_default();

/// How a state of anything looks.
pub fn of_state(word: &str) -> Style {
    match word {
        "running" | "creating" | "pending" | "completing" | "queued" | "leased" => NAME,
        "completed" | "succeeded" | "acknowledged" | "open" | "ok" => GOOD,
        "failed" | "fail" | "undeliverable" => BAD,
        "cancelled" | "delivered_unconfirmed" | "warn" | "closed" => WARN,
        _ => Style::new(),
    }
}

/// How an event of this type looks.
pub fn of_type(event_type: &str) -> Style {
    match event_type {
        "agent.failed" | "agent.error" | "agent.stream_error" | "sandbox.failed" | "worker.lost"
        | "worker.rejected" => BAD,
        "message.undeliverable" | "message.delivered_unconfirmed" | "agent.interrupted" => WARN,
        "agent.completed" | "sandbox.completed" => GOOD,
        _ if event_type.starts_with("agent.") => NAME,
        _ => FAINT,
    }
}
