//! Switches a server that root started to `server.user`.
//!
//! The launcher needs root: a spawner process, which stays root and does nothing else, starts it. It starts before this
//! process gives up its rights.

use super::data_dir;
use crate::failure::{Failure, Result};
use crate::launcher;
use atoll_config::Config;
use atoll_jail::{Launcher, LauncherSpawner, ServerUser};
use std::net::SocketAddr;
use std::sync::Arc;

/// Starts the launcher, or says why it cannot, and switches this process to the configured user.
pub fn start_as_user(config: &Config) -> Result<std::result::Result<Arc<Launcher>, String>> {
    let Some(name) = &config.server.user else { return Ok(launcher::start_launcher(config)) };
    let failed = |why: String| Failure::setup("user", why);
    let owner = find_user(name).map_err(failed)?;
    let own = rustix::process::geteuid();
    if own.as_raw() == owner.uid {
        return Ok(launcher::start_launcher(config));
    }
    if !own.is_root() {
        let why = format!("server.user is {name}, but only root can switch users (this is uid {})", own.as_raw());
        return Err(failed(why).with_hint("Start the server as root or as that user, or unset server.user."));
    }
    check_privileged_port(config.server.listen, first_unprivileged_port()).map_err(failed)?;
    data_dir::prepare_data_dir(&config.data_dir, owner).map_err(|why| Failure::setup("data_dir", why))?;
    let options = launcher::launcher_options(config)
        .map(|options| atoll_jail::LauncherOptions { server_user: Some(owner), ..options });
    let spawned = options.and_then(|options| {
        let spawner =
            LauncherSpawner::start(&options, &[launcher::SPAWNER_ARGUMENT]).map_err(|error| error.to_string())?;
        Ok(atoll_jail::LauncherOptions { spawner: Some(Arc::new(spawner)), ..options })
    });
    owner.switch_to().map_err(|error| failed(format!("cannot switch to {name} (uid {}): {error}", owner.uid)))?;
    data_dir::check_reachable(&config.data_dir, name).map_err(|why| Failure::setup("data_dir", why))?;
    Ok(spawned.and_then(|options| Launcher::start(options).map(Arc::new).map_err(|error| error.to_string())))
}

/// Finds a user by name or number.
pub fn find_user(name: &str) -> std::result::Result<ServerUser, String> {
    let users = std::fs::read_to_string("/etc/passwd").map_err(|error| format!("cannot read /etc/passwd: {error}"))?;
    find_in_passwd(name, &users)
}

fn find_in_passwd(name: &str, users: &str) -> std::result::Result<ServerUser, String> {
    let number: Option<u32> = name.parse().ok();
    let found = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (user, group) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        (fields.first() == Some(&name) || number == Some(user)).then_some(ServerUser { uid: user, gid: group })
    });
    let owner = match (found, number) {
        (Some(owner), _) => owner,
        // A numeric id need not be in /etc/passwd.
        (None, Some(number)) if number != u32::MAX => ServerUser { uid: number, gid: number },
        (None, _) => {
            return Err(format!(
                "server.user: there is no user `{name}` in /etc/passwd; create it with useradd --system {name}"
            ));
        }
    };
    if owner.uid == 0 || owner.gid == 0 {
        return Err(format!("server.user: `{name}` is root or in root's group; choose another user"));
    }
    Ok(owner)
}

fn first_unprivileged_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

fn check_privileged_port(listen: SocketAddr, first_free: u16) -> std::result::Result<(), String> {
    let port = listen.port();
    if port == 0 || port >= first_free {
        return Ok(());
    }
    Err(format!(
        "server.listen: port {port} is privileged, and the server is not root when it listens; choose a port from \
         {first_free} on, or run `sysctl net.ipv4.ip_unprivileged_port_start={port}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\natoll:x:998:997::/:/bin/false\nwheel:x:5:0::/:/bin/sh\n";

    #[test]
    fn finds_a_user_by_name_or_number() {
        assert_eq!(find_in_passwd("atoll", USERS), Ok(ServerUser { uid: 998, gid: 997 }));
        assert_eq!(find_in_passwd("998", USERS), Ok(ServerUser { uid: 998, gid: 997 }));
        assert_eq!(find_in_passwd("54321", USERS), Ok(ServerUser { uid: 54321, gid: 54321 }));
        for name in ["nobody-here", "", "4294967295"] {
            assert!(find_in_passwd(name, USERS).unwrap_err().contains("there is no user"), "{name}");
        }
        for name in ["root", "0", "wheel"] {
            assert!(find_in_passwd(name, USERS).unwrap_err().contains("root"), "{name}");
        }
    }

    #[test]
    fn rejects_a_privileged_port() {
        let port = |port: u16| check_privileged_port(SocketAddr::from(([127, 0, 0, 1], port)), 1024);
        assert!(port(0).is_ok() && port(1024).is_ok() && port(7700).is_ok());
        assert!(port(443).unwrap_err().contains("port 443 is privileged"));
    }
}
