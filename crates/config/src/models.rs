//! The keys `upstreams` and `models`, and the model upstreams that result from them and from the API keys.

use crate::error::ConfigProblem;
use crate::format::check_base_url;
use crate::load::Provenance;
use crate::sections::Config;
use atoll_core::model::{AuthScheme, BodyEncoding, LoginRenewal, ModelApi, Price};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const UPSTREAMS_FORM: &str = "{name: {kind: anthropic|openai|gemini, url: a base URL, key_env: a variable or \
     key_secret: a secret, auth: api_key|bearer, login: {token_url: a URL, client_id: text, body: json|form}}}";
pub(crate) const MODELS_FORM: &str = "[{name: text, upstream: name, model: its name there, context: whole number, price: \
     {input: dollars, output: dollars, cache_read: dollars, cache_write: dollars}}]";

/// An upstream that every configuration has.
struct BuiltInUpstream {
    api: ModelApi,
    url: &'static str,
    /// Environment variable, and stored secret, with the API key.
    variable: &'static str,
    key: fn(&Config) -> Option<&SecretString>,
    base_url: fn(&Config) -> Option<&String>,
}

const BUILT_IN_UPSTREAMS: &[BuiltInUpstream] = &[
    BuiltInUpstream {
        api: ModelApi::Anthropic,
        url: "https://api.anthropic.com",
        variable: "ANTHROPIC_API_KEY",
        key: |config| config.anthropic.api_key.as_ref(),
        base_url: |config| config.anthropic.base_url.as_ref(),
    },
    BuiltInUpstream {
        api: ModelApi::OpenAi,
        url: "https://api.openai.com/v1",
        variable: "OPENAI_API_KEY",
        key: |config| config.openai.api_key.as_ref(),
        base_url: |config| config.openai.base_url.as_ref(),
    },
    BuiltInUpstream {
        api: ModelApi::Gemini,
        url: "https://generativelanguage.googleapis.com",
        variable: "GEMINI_API_KEY",
        key: |config| config.gemini.api_key.as_ref(),
        base_url: |config| config.gemini.base_url.as_ref(),
    },
];

/// A model API that the gateway forwards requests to.
#[derive(Debug, Clone)]
pub struct Upstream {
    pub name: String,
    pub api: ModelApi,
    /// Without a trailing slash.
    pub url: String,
    pub key: Option<SecretString>,
    /// Stored secret with the key, used if `key` is unset or a project has its own.
    pub secret: Option<String>,
    pub auth: AuthScheme,
    /// False for a self-hosted upstream, which may need no key.
    pub needs_key: bool,
    /// Endpoint that renews a login stored in place of a key.
    pub login: Option<LoginRenewal>,
}

/// The login endpoints of the vendors, by the host of the model API.
fn vendor_login(url: &str) -> Option<LoginRenewal> {
    let host = url.strip_prefix("https://")?.split(['/', ':']).next()?;
    let (token_url, client_id) = match host {
        "api.anthropic.com" => ("https://console.anthropic.com/v1/oauth/token", "9d1c250a-e61b-44d9-88ed-5944d1962f5e"),
        "api.openai.com" | "chatgpt.com" => ("https://auth.openai.com/oauth/token", "app_EMoamEEZ73f0CkXaXp7hrann"),
        _ => return None,
    };
    Some(LoginRenewal { token_url: token_url.to_owned(), client_id: client_id.to_owned(), body: BodyEncoding::Json })
}

/// One entry of `models`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub name: String,
    pub upstream: String,
    /// Name at the upstream, if it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Context window in tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

/// One entry of `upstreams`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamEntry {
    kind: ModelApi,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_env: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_secret: Option<String>,
    #[serde(default = "default_auth")]
    auth: AuthScheme,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    login: Option<LoginRenewal>,
}

const fn default_auth() -> AuthScheme {
    AuthScheme::ApiKey
}

fn is_upstream_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn is_variable_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

pub(crate) fn check_upstreams(
    mut upstreams: BTreeMap<String, UpstreamEntry>,
) -> Result<BTreeMap<String, UpstreamEntry>, String> {
    for (name, upstream) in &mut upstreams {
        if !is_upstream_name(name) {
            return Err(format!("`{name}` is not a name: use a-z, 0-9 and `-`"));
        }
        if let Some(url) = &mut upstream.url {
            check_base_url(url).map_err(|detail| format!("the URL of {name}: {detail}"))?;
            url.truncate(url.trim_end_matches('/').len());
        } else if find_built_in(name).is_none() {
            return Err(format!("{name} has no url"));
        }
        if let Some(login) = &upstream.login {
            check_base_url(&login.token_url).map_err(|detail| format!("login.token_url of {name}: {detail}"))?;
        }
        match (&upstream.key_env, &upstream.key_secret) {
            (Some(_), Some(_)) => return Err(format!("{name} has both key_env and key_secret: set one of them")),
            (Some(variable), None) if !is_variable_name(variable) => {
                return Err(format!("key_env of {name} is the name of a variable, not the key"));
            }
            (None, Some(secret)) if !atoll_core::secret::is_secret_name(secret) => {
                return Err(format!("key_secret of {name} is the name of a secret, like ZAI_API_KEY"));
            }
            (Some(_), None) | (None, Some(_) | None) => {}
        }
    }
    Ok(upstreams)
}

pub(crate) fn check_models(models: Vec<Model>) -> Result<Vec<Model>, String> {
    for (index, model) in models.iter().enumerate() {
        let names = [Some(&model.name), model.model.as_ref()];
        let is_plain = |name: &&String| !name.is_empty() && name.len() <= 200 && !name.chars().any(char::is_control);
        if !names.iter().flatten().all(is_plain) {
            return Err("a model has no name".to_owned());
        }
        let name = &model.name;
        if model.price.is_some_and(|price| !price.is_valid()) {
            return Err(format!("the price of {name} is not in dollars from 0 to 1000000"));
        }
        if models[..index].iter().any(|other| other.name == *name) {
            return Err(format!("{name} is listed twice"));
        }
    }
    Ok(models)
}

fn find_built_in(name: &str) -> Option<&'static BuiltInUpstream> {
    BUILT_IN_UPSTREAMS.iter().find(|built_in| built_in.api.as_str() == name)
}

impl BuiltInUpstream {
    fn to_upstream(&self, config: &Config) -> Upstream {
        let base_url = (self.base_url)(config);
        let url = base_url.cloned().unwrap_or_else(|| self.url.to_owned());
        Upstream {
            name: self.api.to_string(),
            api: self.api,
            login: vendor_login(&url),
            url,
            key: (self.key)(config).cloned(),
            secret: Some(self.variable.to_owned()),
            auth: AuthScheme::ApiKey,
            needs_key: base_url.is_none(),
        }
    }
}

impl UpstreamEntry {
    fn to_upstream(&self, name: &str, config: &Config, env: &BTreeMap<String, String>) -> Upstream {
        let base = find_built_in(self.kind.as_str()).map(|built_in| built_in.to_upstream(config));
        let names_key = self.key_env.is_some() || self.key_secret.is_some();
        // An entry that changes a built-in upstream keeps the key of that upstream.
        let inherited = base.as_ref().filter(|_| name == self.kind.as_str() && !names_key);
        let from_env =
            |name: &String| env.get(name).filter(|value| !value.is_empty()).map(|value| value.as_str().into());
        let url = self.url.clone().or_else(|| base.as_ref().map(|base| base.url.clone())).unwrap_or_default();
        Upstream {
            name: name.to_owned(),
            needs_key: self.url.is_none() || names_key,
            api: self.kind,
            login: self.login.clone().or_else(|| vendor_login(&url)),
            url,
            key: self.key_env.as_ref().and_then(from_env).or_else(|| inherited.and_then(|base| base.key.clone())),
            secret: self.key_secret.clone().or_else(|| inherited.and_then(|base| base.secret.clone())),
            auth: self.auth,
        }
    }
}

/// Fills `model_upstreams`, and checks that each listed model has an upstream with a key.
pub(crate) fn resolve_upstreams(
    config: &mut Config,
    provenance: &Provenance,
    env: &BTreeMap<String, String>,
    problems: &mut Vec<ConfigProblem>,
) {
    if !provenance.are_valid(&["upstreams", "models"]) {
        return;
    }
    for model in &config.models {
        if let Err(detail) = check_upstream_of(model, config, provenance, env) {
            problems.push(ConfigProblem::Conflict { key: "models", place: provenance.source_of("models"), detail });
        }
    }
    let built_in = BUILT_IN_UPSTREAMS.iter().filter(|built_in| !config.upstreams.contains_key(built_in.api.as_str()));
    let mut upstreams: Vec<Upstream> = built_in.map(|built_in| built_in.to_upstream(config)).collect();
    for (name, entry) in &config.upstreams {
        let upstream = entry.to_upstream(name, config, env);
        config.secret_values.extend(upstream.key.clone());
        upstreams.push(upstream);
    }
    config.model_upstreams = upstreams;
}

fn check_upstream_of(
    model: &Model,
    config: &Config,
    provenance: &Provenance,
    env: &BTreeMap<String, String>,
) -> Result<(), String> {
    let (name, upstream) = (&model.name, model.upstream.as_str());
    match (config.upstreams.get(upstream), find_built_in(upstream)) {
        (Some(UpstreamEntry { key_env: Some(variable), .. }), _) => {
            if env.get(variable).is_none_or(String::is_empty) {
                return Err(format!("the upstream {upstream} of {name} has no key: set {variable}"));
            }
        }
        // A stored secret can be set while the server runs, and a self-hosted upstream may need no key.
        (Some(UpstreamEntry { key_secret: Some(_), .. } | UpstreamEntry { url: Some(_), .. }), _) => {}
        (_, Some(built_in)) => {
            let keys = [format!("{upstream}.api_key"), format!("{upstream}.base_url")];
            let are_valid = provenance.are_valid(&keys.each_ref().map(String::as_str));
            if (built_in.key)(config).is_none() && (built_in.base_url)(config).is_none() && are_valid {
                let (key, variable) = (&keys[0], built_in.variable);
                return Err(format!("the upstream {upstream} of {name} has no key: set `{key}` or {variable}"));
            }
        }
        (_, None) => {
            let built_in = BUILT_IN_UPSTREAMS.iter().map(|built_in| built_in.api.as_str());
            let known: Vec<&str> = built_in.chain(config.upstreams.keys().map(String::as_str)).collect();
            let known = known.join(", ");
            return Err(format!("the upstream `{upstream}` of {name} does not exist; expected one of: {known}"));
        }
    }
    Ok(())
}
