//! Prompts for a line without echo.

use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use secrecy::SecretString;
use std::io::{BufRead, Write};

/// Disables the terminal's echo and restores it when dropped, also after an interrupt.
struct EchoOff {
    before: Termios,
}

impl EchoOff {
    fn disable_echo() -> std::io::Result<Self> {
        let before = termios::tcgetattr(std::io::stdin())?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO);
        unseen.local_modes.insert(LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
        // Flush discards type-ahead, which the terminal has already echoed.
        termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, &unseen)?;
        Ok(Self { before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _shown: Result<(), _> = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

pub async fn prompt_secret(question: &str) -> std::io::Result<SecretString> {
    let _unseen = EchoOff::disable_echo()?;
    {
        let mut screen = std::io::stderr().lock();
        screen.write_all(question.as_bytes())?;
        screen.flush()?;
    }
    // The blocking read has its own thread, so that an interrupt can end the command.
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    line.await.map_err(std::io::Error::other).flatten().map(SecretString::from)
}
