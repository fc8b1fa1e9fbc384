//! Greetings.

/// Greets a number of guests.
pub fn greet(guests: u32) -> String {
    let mut number = itoa::Buffer::new();
    format!("Hello, {} guests!", number.format(guests))
}
