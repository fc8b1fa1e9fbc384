//! Turning what the server says into text for people. Nothing that comes from a log reaches a
//! terminal as it is: every text goes through `text` first.

pub mod continuous;
pub mod fields;
pub mod line;
pub mod patch;
pub mod prose;
pub mod size;
pub mod spans;
pub mod style;
pub mod table;
pub mod text;
pub mod time;
pub mod width;

#[cfg(test)]
mod tests;
