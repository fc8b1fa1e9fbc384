//! Checks the isolation of a sandbox with commands that run inside.

use super::fixture::Fixture;
use super::promise::PromiseVerdict;
use crate::connect::ConnectedClient;
use crate::failure::Result;
use atoll_api::NewExec;
use atoll_client::CommandOutput;
use atoll_core::id::SandboxId;

const NAMESPACES: [&str; 5] = ["pid", "mnt", "user", "net", "ipc"];

/// Checks the user, capabilities and namespaces of a command.
pub async fn check_isolated(client: &ConnectedClient, sandbox: SandboxId) -> Result<PromiseVerdict> {
    let status = run_command(client, sandbox, &["cat", "/proc/self/status"]).await?;
    if !status.is_success() {
        return Ok(PromiseVerdict::Broken(format!("cannot read /proc/self/status in the sandbox: {:?}", status.exit)));
    }
    let mut apart = Vec::new();
    for name in NAMESPACES {
        let path = format!("/proc/self/ns/{name}");
        let inside = run_command(client, sandbox, &["readlink", &path]).await?;
        let inside = String::from_utf8_lossy(&inside.stdout).trim().to_owned();
        let outside = std::fs::read_link(&path).map(|link| link.display().to_string()).unwrap_or_default();
        apart.push((name, inside, outside));
    }
    Ok(judge_status(&String::from_utf8_lossy(&status.stdout), &apart))
}

async fn run_command(client: &ConnectedClient, sandbox: SandboxId, argv: &[&str]) -> Result<CommandOutput> {
    let argv = argv.iter().map(|argument| (*argument).to_owned()).collect();
    let command = NewExec { argv: Some(argv), ..NewExec::default() };
    Ok(client.run_command(sandbox, &command).await?.collect_output().await?)
}

/// Requires a process without privileges in its own namespaces.
fn judge_status(status: &str, namespaces: &[(&str, String, String)]) -> PromiseVerdict {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.split_whitespace().collect::<Vec<_>>()).unwrap_or_default()
    };
    let uids = field("Uid");
    if uids.is_empty() || uids.contains(&"0") {
        return PromiseVerdict::Broken(format!("the command's user ids are {uids:?}"));
    }
    for (name, expected) in [("CapEff", "0000000000000000"), ("CapBnd", "0000000000000000"), ("NoNewPrivs", "1")] {
        if field(name) != [expected] {
            return PromiseVerdict::Broken(format!("{name} is {:?}, not {expected}", field(name)));
        }
    }
    let shared = namespaces.iter().find(|(_, inside, outside)| inside.is_empty() || inside == outside);
    if let Some((name, inside, _)) = shared {
        return PromiseVerdict::Broken(format!("the sandbox shares the host's {name} namespace ({inside})"));
    }
    let names: Vec<_> = namespaces.iter().map(|(name, ..)| *name).collect();
    let uid = uids.first().copied().unwrap_or_default();
    PromiseVerdict::Held(format!("uid {uid}, no capabilities, own namespaces: {}", names.join(", ")))
}

/// Checks that a command can read neither the canaries nor the data directory, by several paths.
pub async fn check_hidden(client: &ConnectedClient, sandbox: SandboxId, ground: &Fixture) -> Result<PromiseVerdict> {
    let mut path_count = 0;
    for canary in &ground.canaries {
        let path = canary.display().to_string();
        for path in [path.clone(), format!("/proc/1/root{path}"), format!("/workspace/../..{path}")] {
            let result = run_command(client, sandbox, &["cat", &path]).await?;
            let found = [&result.stdout, &result.stderr]
                .iter()
                .any(|output| String::from_utf8_lossy(output).contains(&ground.secret));
            if found || result.is_success() {
                return Ok(PromiseVerdict::Broken(format!("the sandbox can read {path}")));
            }
            path_count += 1;
        }
    }
    let data = ground.data_dir().display().to_string();
    if run_command(client, sandbox, &["ls", &data]).await?.is_success() {
        return Ok(PromiseVerdict::Broken("the sandbox can list the server's data directory".to_owned()));
    }
    Ok(PromiseVerdict::Held(format!("{path_count} paths to canary files tried, none readable")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Name:\tcat\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n";

    fn separate_namespaces() -> Vec<(&'static str, String, String)> {
        NAMESPACES.map(|name| (name, format!("{name}:[2]"), format!("{name}:[1]"))).to_vec()
    }

    #[test]
    fn any_privilege_breaks_isolation() {
        assert!(matches!(judge_status(GOOD, &separate_namespaces()), PromiseVerdict::Held(_)));
        for (from, to) in [
            ("Uid:\t1000\t1000", "Uid:\t1000\t0"),
            ("Uid:", "Gid:"),
            ("CapEff:\t0000000000000000", "CapEff:\t0000000000000080"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
        ] {
            assert!(
                matches!(judge_status(&GOOD.replace(from, to), &separate_namespaces()), PromiseVerdict::Broken(_)),
                "{to}"
            );
        }
    }

    #[test]
    fn a_shared_namespace_breaks_isolation() {
        for at in 0..NAMESPACES.len() {
            let mut shared = separate_namespaces();
            shared[at].1 = shared[at].2.clone();
            assert!(matches!(judge_status(GOOD, &shared), PromiseVerdict::Broken(_)));
        }
    }
}
