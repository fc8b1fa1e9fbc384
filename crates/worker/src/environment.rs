//! The variables of everything that runs in the sandbox. Nothing of the worker's own gets there but its `PATH`.

use crate::heartbeat::Settings;
use atoll_core::bounds::ENV_VALUE;
use atoll_core::id::SandboxId;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// No pager, no editor and no question can hold up a command that nobody looks at.
const QUIET: &[(&str, &str)] = &[
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("EDITOR", "true"),
    ("GIT_EDITOR", "true"),
    ("GIT_TERMINAL_PROMPT", "0"),
];

/// Where programs find the way out, in all the spellings that they look for. What may leave is decided at its other
/// end; the variables are always there, since a refusal says more than a connection that never comes. All kinds of
/// traffic are named as HTTP's: there are programs that fail at the sight of another kind of proxy.
const PROXY: &str = "http://127.0.0.1:7709";
const NOT_BY_PROXY: &str = "localhost,127.0.0.1,::1";
const WAY_OUT: &[(&str, &str)] = &[
    ("HTTP_PROXY", PROXY),
    ("HTTPS_PROXY", PROXY),
    ("ALL_PROXY", PROXY),
    ("NO_PROXY", NOT_BY_PROXY),
    ("http_proxy", PROXY),
    ("https_proxy", PROXY),
    ("all_proxy", PROXY),
    ("no_proxy", NOT_BY_PROXY),
    ("NODE_USE_ENV_PROXY", "1"),
];
const SEEN: &[(&str, &str)] = &[("LANG", "C.UTF-8"), ("TERM", "xterm-256color")];

#[derive(Debug)]
pub struct Environment {
    sandbox: SandboxId,
    path: String,
    home: String,
    user: String,
    /// Known when the server has said how to begin.
    settings: Mutex<Settings>,
}

impl Environment {
    pub fn new(sandbox: SandboxId, path: &str, home: &str, user: &str) -> Self {
        let (path, home, user) = (path.to_owned(), home.to_owned(), user.to_owned());
        Self { sandbox, path, home, user, settings: Mutex::default() }
    }

    pub fn home(&self) -> &str {
        &self.home
    }

    pub fn set(&self, settings: Settings) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
    }

    /// For a command that somebody wants run.
    pub fn of_command(&self, more: &BTreeMap<String, String>) -> Vec<(String, String)> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.base();
        let given = settings.env.iter().chain(more);
        all.extend(given.map(|(name, value)| (name.clone(), value.clone())));
        all.into_iter().collect()
    }

    /// For a command on a terminal, where somebody looks: pagers and editors are welcome.
    pub fn of_terminal(&self, more: &BTreeMap<String, String>) -> Vec<(String, String)> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.own();
        let usual = SEEN.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        all.extend(usual);
        let given = settings.env.iter().chain(more);
        all.extend(given.map(|(name, value)| (name.clone(), value.clone())));
        all.into_iter().collect()
    }

    /// For the agent. What is too long is left out: it stands in the prompt anyway.
    pub fn of_agent(&self, prompt: &str, more: Vec<(String, String)>) -> Vec<(String, String)> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.base();
        all.extend(settings.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        all.insert("SANDBOX_ID".to_owned(), self.sandbox.to_string());
        let branch = settings.repo.as_ref().and_then(|repo| repo.branch.clone());
        let fits = |value: &String| value.len() <= ENV_VALUE && !value.contains('\0');
        all.extend(branch.filter(fits).map(|branch| ("BRANCH_NAME".to_owned(), branch)));
        let task = Some(prompt.to_owned()).filter(fits);
        all.extend(task.map(|task| ("TASK_DESCRIPTION".to_owned(), task)));
        all.extend(more);
        all.into_iter().collect()
    }

    fn base(&self) -> BTreeMap<String, String> {
        let mut all = self.own();
        all.extend(QUIET.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        all
    }

    fn own(&self) -> BTreeMap<String, String> {
        let own = [("PATH", &*self.path), ("HOME", &self.home), ("USER", &self.user), ("IS_SANDBOX", "1")];
        let all = own.into_iter().chain(WAY_OUT.iter().copied());
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heartbeat::Repo;

    fn environment() -> Environment {
        let environment = Environment::new(SandboxId::new(), "/bin", "/home/agent", "agent");
        let env = [("TERM".to_owned(), "xterm".to_owned()), ("MINE".to_owned(), "1".to_owned())].into();
        environment.set(Settings { env, repo: Some(Repo { branch: Some("work".to_owned()) }), ..Settings::default() });
        environment
    }

    fn value<'a>(all: &'a [(String, String)], name: &str) -> Option<&'a str> {
        all.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn settings_come_before_what_is_usual_and_a_command_s_own_before_both() {
        let all = environment().of_command(&[("MINE".to_owned(), "2".to_owned())].into());
        assert_eq!((value(&all, "TERM"), value(&all, "MINE")), (Some("xterm"), Some("2")));
        assert_eq!((value(&all, "HOME"), value(&all, "IS_SANDBOX")), (Some("/home/agent"), Some("1")));
        assert_eq!((value(&all, "SANDBOX_ID"), value(&all, "CI")), (None, None));
    }

    #[test]
    fn every_spelling_names_the_proxy_s_port() {
        let all = environment().of_command(&BTreeMap::new());
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            assert_eq!(value(&all, name), Some(&*format!("http://127.0.0.1:{}", crate::outward::PORT)), "{name}");
        }
        assert_eq!(value(&all, "NO_PROXY"), value(&all, "no_proxy"));
        let mine = [("HTTPS_PROXY".to_owned(), "http://127.0.0.1:9".to_owned())].into();
        assert_eq!(value(&environment().of_command(&mine), "HTTPS_PROXY"), Some("http://127.0.0.1:9"));
    }

    #[test]
    fn on_a_terminal_somebody_looks() {
        let plain = Environment::new(SandboxId::new(), "/bin", "/home/agent", "agent").of_terminal(&BTreeMap::new());
        assert_eq!((value(&plain, "TERM"), value(&plain, "PAGER")), (Some("xterm-256color"), None));
        let all = environment().of_terminal(&[("MINE".to_owned(), "2".to_owned())].into());
        assert_eq!((value(&all, "TERM"), value(&all, "MINE"), value(&all, "EDITOR")), (Some("xterm"), Some("2"), None));
    }

    #[test]
    fn an_agent_knows_its_task_if_it_fits() {
        let all = environment().of_agent("do it", vec![]);
        assert_eq!((value(&all, "TASK_DESCRIPTION"), value(&all, "BRANCH_NAME")), (Some("do it"), Some("work")));
        assert!(value(&all, "SANDBOX_ID").is_some_and(|id| id.starts_with("sbx_")));
        assert_eq!(value(&environment().of_agent(&"x".repeat(ENV_VALUE + 1), vec![]), "TASK_DESCRIPTION"), None);
    }
}
