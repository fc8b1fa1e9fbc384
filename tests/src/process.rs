//! The real programs as processes of their own.

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// A program of the workspace, built beside this test.
pub fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let dir = test.parent().and_then(Path::parent).unwrap();
    let program = dir.join(name);
    assert!(
        program.exists(),
        "{} is not built: run `make test`, or `cargo build --workspace` first",
        program.display()
    );
    program
}

/// `atoll serve` as a process. Killed when dropped.
pub struct ServerProcess {
    child: Child,
    pub url: String,
    pub address: SocketAddr,
    data_dir: PathBuf,
    arguments: Vec<String>,
}

impl ServerProcess {
    /// On a free port; `arguments` are further flags of `atoll serve`.
    pub fn start(data_dir: &Path, arguments: &[String]) -> Self {
        Self::start_on("127.0.0.1:0".parse().unwrap(), data_dir, arguments)
    }

    fn start_on(listen: SocketAddr, data_dir: &Path, arguments: &[String]) -> Self {
        let mut command = Command::new(program("atoll"));
        command.args(["serve", "--json", "--listen", &listen.to_string()]).arg("--data-dir").arg(data_dir);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).env("ATOLL_LOG", "warn");
        for (name, _) in std::env::vars().filter(|(name, _)| name == "DATABASE_URL" || name == "ATOLL_SERVER") {
            command.env_remove(name);
        }
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let listening: Value =
            serde_json::from_str(&line).unwrap_or_else(|_| panic!("atoll serve did not start: {line}"));
        let url = listening["url"].as_str().unwrap().to_owned();
        let address = url.trim_start_matches("http://").parse().unwrap();
        Self { child, url, address, data_dir: data_dir.to_owned(), arguments: arguments.to_vec() }
    }

    pub fn token(&self) -> String {
        std::fs::read_to_string(self.data_dir.join("admin-token")).unwrap().trim().to_owned()
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGKILL, at once.
    pub fn kill(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }

    /// Another one on the same data, at the same address.
    pub fn start_again(&mut self) {
        self.kill();
        *self = Self::start_on(self.address, &self.data_dir.clone(), &self.arguments.clone());
    }
}

impl Drop for ServerProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
