//! Session keys: names by which events of other systems find a session.

/// The key of a session that works on a branch.
pub fn branch_key(repository: &str, branch: &str) -> String {
    format!("git:branch:{repository}:{branch}")
}

/// The identity of a repository, the same for all its URLs: `host/owner/name`. A path is its own identity.
///
/// `https://github.com/Owner/name.git`, `git@github.com:Owner/name` and `ssh://git@github.com/Owner/name/` are the same.
/// Forges ignore the case of owners and names.
pub fn identify_repository(location: &str) -> String {
    let rest = match location.split_once("://") {
        Some(("file", path)) => return path.trim_end_matches('/').to_owned(),
        Some((_, rest)) => rest.to_owned(),
        // Git's short form of ssh.
        None => match location.split_once(':') {
            Some((host, path)) if !host.contains('/') && !host.is_empty() => format!("{host}/{path}"),
            Some(_) | None => return location.trim_end_matches('/').to_owned(),
        },
    };
    let (authority, path) = rest.split_once('/').unwrap_or((&rest, ""));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let path = path.trim_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    format!("{host}/{path}").to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_urls_of_a_repository_have_one_identity() {
        for url in [
            "https://github.com/Owner/name.git",
            "https://user:token@GitHub.com/owner/name",
            "git@github.com:owner/name.git",
            "ssh://git@github.com/Owner/name/",
        ] {
            assert_eq!(identify_repository(url), "github.com/owner/name", "{url}");
        }
        assert_eq!(identify_repository("http://127.0.0.1:8080/a/b.git"), "127.0.0.1:8080/a/b");
        assert_eq!(identify_repository("/srv/Code/x"), "/srv/Code/x");
        assert_eq!(identify_repository("file:///srv/Code/x/"), "/srv/Code/x");
        assert_eq!(identify_repository("/srv/a:b"), "/srv/a:b");
        assert_eq!(branch_key("github.com/o/n", "atoll/x"), "git:branch:github.com/o/n:atoll/x");
    }
}
