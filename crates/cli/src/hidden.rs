//! A line from the terminal that the terminal does not show.

use rustix::termios::{self, LocalModes, OptionalActions, Termios};
use secrecy::SecretString;
use std::io::{BufRead, Write};

/// Shows again what is typed when it goes, also when the question is broken off.
struct Unseen {
    before: Termios,
}

impl Unseen {
    fn begin() -> std::io::Result<Self> {
        let before = termios::tcgetattr(std::io::stdin())?;
        let mut unseen = before.clone();
        unseen.local_modes.remove(LocalModes::ECHO);
        unseen.local_modes.insert(LocalModes::ECHONL | LocalModes::ICANON | LocalModes::ISIG);
        // What was typed ahead would have been shown already; it is not the answer.
        termios::tcsetattr(std::io::stdin(), OptionalActions::Flush, &unseen)?;
        Ok(Self { before })
    }
}

impl Drop for Unseen {
    fn drop(&mut self) {
        let _shown: Result<(), _> = termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.before);
    }
}

pub async fn prompt(question: &str) -> std::io::Result<SecretString> {
    let _unseen = Unseen::begin()?;
    {
        let mut screen = std::io::stderr().lock();
        screen.write_all(question.as_bytes())?;
        screen.flush()?;
    }
    // On a thread of its own, so that an interrupt is heard meanwhile.
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    line.await.map_err(std::io::Error::other).flatten().map(SecretString::from)
}
