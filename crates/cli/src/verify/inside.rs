//! What a command sees of itself and of this machine, inside of a sandbox.

use super::ground::Ground;
use super::promise::Verdict;
use crate::client::Client;
use crate::failure::Result;
use atoll_core::id::SandboxId;
use serde_json::json;

const NAMESPACES: [&str; 5] = ["pid", "mnt", "user", "net", "ipc"];

/// Its own view of itself.
pub async fn isolated(client: &Client, sandbox: SandboxId) -> Result<Verdict> {
    let status = client.exec_whole(sandbox, &json!({ "argv": ["cat", "/proc/self/status"] })).await?;
    if !status.succeeded() {
        return Ok(Verdict::Broken(format!("/proc/self/status can't be read inside: {:?}", status.exit)));
    }
    let mut apart = Vec::new();
    for name in NAMESPACES {
        let path = format!("/proc/self/ns/{name}");
        let inside = client.exec_whole(sandbox, &json!({ "argv": ["readlink", path] })).await?;
        let inside = String::from_utf8_lossy(&inside.stdout).trim().to_owned();
        let outside = std::fs::read_link(&path).map(|link| link.display().to_string()).unwrap_or_default();
        apart.push((name, inside, outside));
    }
    Ok(judge(&String::from_utf8_lossy(&status.stdout), &apart))
}

/// No rights, and nothing shared. Pure.
fn judge(status: &str, namespaces: &[(&str, String, String)]) -> Verdict {
    let field = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.map(|value| value.split_whitespace().collect::<Vec<_>>()).unwrap_or_default()
    };
    let uids = field("Uid");
    if uids.is_empty() || uids.contains(&"0") {
        return Verdict::Broken(format!("its user ids are {uids:?}"));
    }
    for (name, wanted) in [("CapEff", "0000000000000000"), ("CapBnd", "0000000000000000"), ("NoNewPrivs", "1")] {
        if field(name) != [wanted] {
            return Verdict::Broken(format!("{name} is {:?}, not {wanted}", field(name)));
        }
    }
    let shared = namespaces.iter().find(|(_, inside, outside)| inside.is_empty() || inside == outside);
    if let Some((name, inside, _)) = shared {
        return Verdict::Broken(format!("its {name} namespace is this machine's ({inside})"));
    }
    let names: Vec<_> = namespaces.iter().map(|(name, ..)| *name).collect();
    let uid = uids.first().copied().unwrap_or_default();
    Verdict::Held(format!("uid {uid}, no capabilities, namespaces of its own: {}", names.join(", ")))
}

/// No canary and nothing of the data directory, neither by its path nor around the corner.
pub async fn hidden(client: &Client, sandbox: SandboxId, ground: &Ground) -> Result<Verdict> {
    let mut tried = 0;
    for canary in &ground.canaries {
        let path = canary.display().to_string();
        for path in [path.clone(), format!("/proc/1/root{path}"), format!("/workspace/../..{path}")] {
            let seen = client.exec_whole(sandbox, &json!({ "argv": ["cat", path] })).await?;
            let found =
                [&seen.stdout, &seen.stderr].iter().any(|said| String::from_utf8_lossy(said).contains(&ground.secret));
            if found || seen.succeeded() {
                return Ok(Verdict::Broken(format!("{path} can be read inside")));
            }
            tried += 1;
        }
    }
    let data = ground.data().display().to_string();
    if client.exec_whole(sandbox, &json!({ "argv": ["ls", data] })).await?.succeeded() {
        return Ok(Verdict::Broken("the server's data directory can be listed inside".to_owned()));
    }
    Ok(Verdict::Held(format!("{tried} ways to a planted file, none of them leads there")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "Name:\tcat\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000000000\nCapBnd:\t0000000000000000\nNoNewPrivs:\t1\n";

    fn apart() -> Vec<(&'static str, String, String)> {
        NAMESPACES.map(|name| (name, format!("{name}:[2]"), format!("{name}:[1]"))).to_vec()
    }

    #[test]
    fn only_without_any_right_it_is_isolated() {
        assert!(matches!(judge(GOOD, &apart()), Verdict::Held(_)));
        for (from, to) in [
            ("Uid:\t1000\t1000", "Uid:\t1000\t0"),
            ("Uid:", "Gid:"),
            ("CapEff:\t0000000000000000", "CapEff:\t0000000000000080"),
            ("CapBnd:\t0000000000000000", "CapBnd:\t000001ffffffffff"),
            ("NoNewPrivs:\t1", "NoNewPrivs:\t0"),
        ] {
            assert!(matches!(judge(&GOOD.replace(from, to), &apart()), Verdict::Broken(_)), "{to}");
        }
    }

    #[test]
    fn a_shared_namespace_is_not_isolated() {
        for at in 0..NAMESPACES.len() {
            let mut shared = apart();
            shared[at].1 = shared[at].2.clone();
            assert!(matches!(judge(GOOD, &shared), Verdict::Broken(_)));
        }
    }
}
