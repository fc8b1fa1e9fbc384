//! The environment of programs in the sandbox. Of the worker's own variables they get only `PATH`.

use atoll_core::bounds::MAX_ENV_VALUE_BYTES;
use atoll_core::id::SandboxId;
use atoll_drivers::AgentSettings;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Keeps pagers, editors and prompts from blocking a command without a terminal.
const NON_INTERACTIVE: &[(&str, &str)] = &[
    ("LANG", "C.UTF-8"),
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("EDITOR", "true"),
    ("GIT_EDITOR", "true"),
    ("GIT_TERMINAL_PROMPT", "0"),
];

/// The proxy variables in all common spellings. They are always set: an error of the proxy says more than a connection
/// that times out. All name an HTTP proxy, because some programs fail with other schemes.
const PROXY_URL: &str = "http://127.0.0.1:7709";
const NO_PROXY_HOSTS: &str = "localhost,127.0.0.1,::1";
const PROXY_VARIABLES: &[(&str, &str)] = &[
    ("HTTP_PROXY", PROXY_URL),
    ("HTTPS_PROXY", PROXY_URL),
    ("ALL_PROXY", PROXY_URL),
    ("NO_PROXY", NO_PROXY_HOSTS),
    ("http_proxy", PROXY_URL),
    ("https_proxy", PROXY_URL),
    ("all_proxy", PROXY_URL),
    ("no_proxy", NO_PROXY_HOSTS),
    ("NODE_USE_ENV_PROXY", "1"),
    // npm repeats refused requests without end if more of them wait than it has sockets.
    ("npm_config_maxsockets", "200"),
    // A refusal does not pass with time: npm and pnpm would wait more than a minute before they report it.
    ("npm_config_fetch_retry_mintimeout", "1000"),
    ("npm_config_fetch_retry_maxtimeout", "5000"),
    ("pnpm_config_fetch_retry_mintimeout", "1000"),
    ("pnpm_config_fetch_retry_maxtimeout", "5000"),
];
const INTERACTIVE: &[(&str, &str)] = &[("LANG", "C.UTF-8"), ("TERM", "xterm-256color")];

/// Values of the agent's variables that the server knows.
#[derive(Debug, Clone, Default)]
pub struct ServerVariables {
    pub project_id: Option<String>,
    pub callback_url: Option<String>,
}

#[derive(Debug)]
pub struct Environment {
    sandbox: SandboxId,
    path: String,
    home: String,
    user: String,
    /// Default until the server has sent `start`.
    settings: Mutex<AgentSettings>,
    server: Mutex<ServerVariables>,
}

impl Environment {
    pub fn new(sandbox: SandboxId, path: &str, home: &str, user: &str) -> Self {
        let (path, home, user) = (path.to_owned(), home.to_owned(), user.to_owned());
        Self { sandbox, path, home, user, settings: Mutex::default(), server: Mutex::default() }
    }

    pub fn home(&self) -> &str {
        &self.home
    }

    pub fn set_start(&self, settings: AgentSettings, server: ServerVariables) {
        *self.settings.lock().unwrap_or_else(PoisonError::into_inner) = settings;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = server;
    }

    /// The environment of a command.
    pub fn for_command(&self, more: &BTreeMap<String, String>) -> Vec<(String, String)> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.non_interactive();
        let variables = settings.env.iter().chain(more);
        all.extend(variables.map(|(name, value)| (name.clone(), value.clone())));
        all.into_iter().collect()
    }

    /// The environment of a command on a terminal, with pagers and editors.
    pub fn for_terminal(&self, more: &BTreeMap<String, String>) -> Vec<(String, String)> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.common();
        let usual = INTERACTIVE.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        all.extend(usual);
        let variables = settings.env.iter().chain(more);
        all.extend(variables.map(|(name, value)| (name.clone(), value.clone())));
        all.into_iter().collect()
    }

    /// The environment of the agent. Leaves out values that are too long; the prompt has them.
    pub fn for_agent(&self, prompt: &str, more: Vec<(String, String)>) -> Vec<(String, String)> {
        let settings = self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = self.non_interactive();
        all.extend(settings.env.iter().map(|(name, value)| (name.clone(), value.clone())));
        all.insert("SANDBOX_ID".to_owned(), self.sandbox.to_string());
        let branch = settings.repo.as_ref().and_then(|repo| repo.branch.clone());
        let fits = |value: &String| value.len() <= MAX_ENV_VALUE_BYTES && !value.contains('\0');
        all.extend(branch.filter(fits).map(|branch| ("BRANCH_NAME".to_owned(), branch)));
        let ServerVariables { project_id, callback_url } =
            self.server.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let data = json!({
            "sandbox_id": self.sandbox,
            "project_id": project_id,
            "branch": all.get("BRANCH_NAME"),
            "description": prompt,
        });
        let data = Some(BASE64.encode(data.to_string())).filter(fits);
        all.extend(data.map(|data| ("TASK_DATA_BASE64".to_owned(), data)));
        all.extend(project_id.filter(fits).map(|project| ("PROJECT_ID".to_owned(), project)));
        all.extend(callback_url.filter(fits).map(|url| ("CALLBACK_URL".to_owned(), url)));
        let task = Some(prompt.to_owned()).filter(fits);
        all.extend(task.map(|task| ("TASK_DESCRIPTION".to_owned(), task)));
        all.extend(more);
        all.into_iter().collect()
    }

    fn non_interactive(&self) -> BTreeMap<String, String> {
        let mut all = self.common();
        all.extend(NON_INTERACTIVE.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        all
    }

    fn common(&self) -> BTreeMap<String, String> {
        let own = [("PATH", &*self.path), ("HOME", &self.home), ("USER", &self.user), ("IS_SANDBOX", "1")];
        let all = own.into_iter().chain(PROXY_VARIABLES.iter().copied());
        all.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_drivers::settings::RepoSettings;

    fn environment() -> Environment {
        let environment = Environment::new(SandboxId::new(), "/bin", "/home/agent", "agent");
        let env = [("TERM".to_owned(), "xterm".to_owned()), ("MINE".to_owned(), "1".to_owned())].into();
        let settings = AgentSettings {
            env,
            repo: Some(RepoSettings { branch: Some("work".to_owned()) }),
            ..AgentSettings::default()
        };
        let callback_url = Some("http://127.0.0.1:7700".to_owned());
        environment.set_start(settings, ServerVariables { project_id: Some("prj_1".to_owned()), callback_url });
        environment
    }

    fn value<'a>(all: &'a [(String, String)], name: &str) -> Option<&'a str> {
        all.iter().find(|(it, _)| it == name).map(|(_, value)| value.as_str())
    }

    #[test]
    fn settings_override_defaults_and_command_variables_override_both() {
        let all = environment().for_command(&[("MINE".to_owned(), "2".to_owned())].into());
        assert_eq!((value(&all, "TERM"), value(&all, "MINE")), (Some("xterm"), Some("2")));
        assert_eq!((value(&all, "HOME"), value(&all, "IS_SANDBOX")), (Some("/home/agent"), Some("1")));
        assert_eq!((value(&all, "SANDBOX_ID"), value(&all, "CI")), (None, None));
    }

    #[test]
    fn all_proxy_variables_have_the_proxy_port() {
        let all = environment().for_command(&BTreeMap::new());
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"] {
            assert_eq!(value(&all, name), Some(&*format!("http://127.0.0.1:{}", atoll_protocol::PROXY_PORT)), "{name}");
        }
        assert_eq!(value(&all, "NO_PROXY"), value(&all, "no_proxy"));
        let mine = [("HTTPS_PROXY".to_owned(), "http://127.0.0.1:9".to_owned())].into();
        assert_eq!(value(&environment().for_command(&mine), "HTTPS_PROXY"), Some("http://127.0.0.1:9"));
    }

    #[test]
    fn a_terminal_has_interactive_defaults() {
        let plain = Environment::new(SandboxId::new(), "/bin", "/home/agent", "agent").for_terminal(&BTreeMap::new());
        assert_eq!((value(&plain, "TERM"), value(&plain, "PAGER")), (Some("xterm-256color"), None));
        let all = environment().for_terminal(&[("MINE".to_owned(), "2".to_owned())].into());
        assert_eq!((value(&all, "TERM"), value(&all, "MINE"), value(&all, "EDITOR")), (Some("xterm"), Some("2"), None));
    }

    #[test]
    fn the_agent_gets_its_task_if_it_fits() {
        let all = environment().for_agent("do it", vec![]);
        assert_eq!((value(&all, "TASK_DESCRIPTION"), value(&all, "BRANCH_NAME")), (Some("do it"), Some("work")));
        assert!(value(&all, "SANDBOX_ID").is_some_and(|id| id.starts_with("sbx_")));
        let data = BASE64.decode(value(&all, "TASK_DATA_BASE64").unwrap()).unwrap();
        let data: serde_json::Value = serde_json::from_slice(&data).unwrap();
        assert_eq!((&data["description"], &data["branch"]), (&json!("do it"), &json!("work")));
        assert_eq!((&data["project_id"], value(&all, "PROJECT_ID")), (&json!("prj_1"), Some("prj_1")));
        assert_eq!(value(&all, "CALLBACK_URL"), Some("http://127.0.0.1:7700"));
        let long = "x".repeat(MAX_ENV_VALUE_BYTES);
        let all = environment().for_agent(&long, vec![]);
        assert_eq!((value(&all, "TASK_DESCRIPTION"), value(&all, "TASK_DATA_BASE64")), (Some(&*long), None));
        assert_eq!(
            value(&environment().for_agent(&"x".repeat(MAX_ENV_VALUE_BYTES + 1), vec![]), "TASK_DESCRIPTION"),
            None
        );
    }
}
