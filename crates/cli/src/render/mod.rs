//! Renders responses and events for people. All untrusted text is escaped by `text` before it reaches a terminal.

pub mod approval;
mod branch_workflow_fact;
pub mod continuous;
pub mod cost;
pub mod event_line;
pub mod event_paragraph;
pub mod fact;
pub mod fields;
mod health_fact;
pub mod markdown;
pub mod patch;
pub mod plain_value;
pub mod setup_lines;
pub mod spans;
pub mod style;
pub mod table;
mod task_fact;
pub mod text;
pub mod time;
pub mod tool_input;
pub mod width;

#[cfg(test)]
mod tests;
