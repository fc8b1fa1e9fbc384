//! Whom the server becomes when root starts it. The launcher can't do without root: it is started by a process that stays
//! root and does nothing else, made before this one gives up its rights.

use super::directory;
use crate::failure::{Failure, Result};
use crate::launcher;
use atoll_config::Config;
use atoll_jail::{Keeper, Launcher, Owner};
use std::net::SocketAddr;
use std::sync::Arc;

/// The launcher, or why there is none. This process is the configured user's afterwards.
pub fn start(config: &Config) -> Result<std::result::Result<Arc<Launcher>, String>> {
    let Some(name) = &config.server.user else { return Ok(launcher::start(config)) };
    let failed = |why: String| Failure::setup("user", why);
    let owner = find(name).map_err(failed)?;
    let own = rustix::process::geteuid();
    if own.as_raw() == owner.user {
        return Ok(launcher::start(config));
    }
    if !own.is_root() {
        let why =
            format!("server.user is {name}, and only root can become another user (this is uid {})", own.as_raw());
        return Err(failed(why).next("Start the server as root or as that user, or leave server.user out."));
    }
    check_port(config.server.listen, first_free_port()).map_err(failed)?;
    directory::prepare(&config.data_dir, owner).map_err(|why| Failure::setup("data_dir", why))?;
    let options =
        launcher::options(config).map(|options| atoll_jail::LauncherOptions { owner: Some(owner), ..options });
    let kept = options.and_then(|options| {
        let keeper = Keeper::start(&options, &[launcher::KEEPER]).map_err(|error| error.to_string())?;
        Ok(atoll_jail::LauncherOptions { keeper: Some(Arc::new(keeper)), ..options })
    });
    owner.assume().map_err(|error| failed(format!("can't become {name} (uid {}): {error}", owner.user)))?;
    directory::reach(&config.data_dir, name).map_err(|why| Failure::setup("data_dir", why))?;
    Ok(kept.and_then(|options| Launcher::start(options).map(Arc::new).map_err(|error| error.to_string())))
}

/// The user of a name or number.
pub fn find(name: &str) -> std::result::Result<Owner, String> {
    let users = std::fs::read_to_string("/etc/passwd").map_err(|error| format!("can't read /etc/passwd: {error}"))?;
    among(name, &users)
}

fn among(name: &str, users: &str) -> std::result::Result<Owner, String> {
    let number: Option<u32> = name.parse().ok();
    let found = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let (user, group) = (fields.get(2)?.parse().ok()?, fields.get(3)?.parse().ok()?);
        (fields.first() == Some(&name) || number == Some(user)).then_some(Owner { user, group })
    });
    let owner = match (found, number) {
        (Some(owner), _) => owner,
        // Numbers need no name.
        (None, Some(number)) if number != u32::MAX => Owner { user: number, group: number },
        (None, _) => {
            return Err(format!(
                "server.user: there is no user `{name}` in /etc/passwd; make one (useradd --system {name}), or name another"
            ));
        }
    };
    if owner.user == 0 || owner.group == 0 {
        return Err(format!("server.user: `{name}` is root or of root's group; name a user with neither"));
    }
    Ok(owner)
}

fn first_free_port() -> u16 {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_unprivileged_port_start").unwrap_or_default();
    text.trim().parse().unwrap_or(1024)
}

fn check_port(listen: SocketAddr, first_free: u16) -> std::result::Result<(), String> {
    let port = listen.port();
    if port == 0 || port >= first_free {
        return Ok(());
    }
    Err(format!(
        "server.listen: port {port} is root's, and the server is not root any more when it listens; take one from \
         {first_free} on, behind a proxy, or allow it with `sysctl net.ipv4.ip_unprivileged_port_start={port}`"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\natoll:x:998:997::/:/bin/false\nwheel:x:5:0::/:/bin/sh\n";

    #[test]
    fn a_user_is_known_by_name_or_number() {
        assert_eq!(among("atoll", USERS), Ok(Owner { user: 998, group: 997 }));
        assert_eq!(among("998", USERS), Ok(Owner { user: 998, group: 997 }));
        assert_eq!(among("54321", USERS), Ok(Owner { user: 54321, group: 54321 }));
        for name in ["nobody-here", "", "4294967295"] {
            assert!(among(name, USERS).unwrap_err().contains("there is no user"), "{name}");
        }
        for name in ["root", "0", "wheel"] {
            assert!(among(name, USERS).unwrap_err().contains("root"), "{name}");
        }
    }

    #[test]
    fn a_port_of_roots_is_refused_before_anything_is_given_up() {
        let port = |port: u16| check_port(SocketAddr::from(([127, 0, 0, 1], port)), 1024);
        assert!(port(0).is_ok() && port(1024).is_ok() && port(7700).is_ok());
        assert!(port(443).unwrap_err().contains("port 443 is root's"));
    }
}
