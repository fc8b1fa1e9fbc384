//! The forms of `upstreams` and `models`, and what they come to together with the keys of the environment.

use crate::error::Problem;
use crate::load::Values;
use crate::url;
use crate::value::Value;
use atoll_core::model::{Api, Auth, Encoding, Price, Renewal};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub(crate) const UPSTREAMS: &str = "{name: {kind: anthropic|openai|gemini, url: a base URL, key_env: a variable or \
     key_secret: a secret, auth: api_key|bearer, login: {token_url: a URL, client_id: text, body: json|form}}}";
pub(crate) const MODELS: &str = "[{name: text, upstream: name, model: its name there, context: whole number, price: \
     {input: dollars, output: dollars, cache_read: dollars, cache_write: dollars}}]";

/// What is there without being written.
struct BuiltIn {
    api: Api,
    url: &'static str,
    key: &'static str,
    base: &'static str,
    variable: &'static str,
}

const BUILT_IN: &[BuiltIn] = &[
    BuiltIn {
        api: Api::Anthropic,
        url: "https://api.anthropic.com",
        key: "anthropic.api_key",
        base: "anthropic.base_url",
        variable: "ANTHROPIC_API_KEY",
    },
    BuiltIn {
        api: Api::OpenAi,
        url: "https://api.openai.com/v1",
        key: "openai.api_key",
        base: "openai.base_url",
        variable: "OPENAI_API_KEY",
    },
    BuiltIn {
        api: Api::Gemini,
        url: "https://generativelanguage.googleapis.com",
        key: "gemini.api_key",
        base: "gemini.base_url",
        variable: "GEMINI_API_KEY",
    },
];

/// Where models are served and which there are.
#[derive(Debug, Clone, Default)]
pub struct Models {
    pub upstreams: Vec<Upstream>,
    /// Empty: every model that an upstream knows.
    pub listed: Vec<Model>,
}

#[derive(Debug, Clone)]
pub struct Upstream {
    pub name: String,
    pub api: Api,
    /// Without a slash at the end.
    pub url: String,
    pub key: Option<SecretString>,
    /// The stored secret that holds the key where `key` is not set, or a project has its own.
    pub secret: Option<String>,
    pub auth: Auth,
    /// Somebody's own place may want none.
    pub needs_key: bool,
    /// Where a login is renewed that is stored in place of a key.
    pub login: Option<Renewal>,
}

/// Where the makers of agents have their own logins renewed, by the host that serves the models.
fn usual_login(url: &str) -> Option<Renewal> {
    let host = url.strip_prefix("https://")?.split(['/', ':']).next()?;
    let (token_url, client_id) = match host {
        "api.anthropic.com" => ("https://console.anthropic.com/v1/oauth/token", "9d1c250a-e61b-44d9-88ed-5944d1962f5e"),
        "api.openai.com" | "chatgpt.com" => ("https://auth.openai.com/oauth/token", "app_EMoamEEZ73f0CkXaXp7hrann"),
        _ => return None,
    };
    Some(Renewal { token_url: token_url.to_owned(), client_id: client_id.to_owned(), body: Encoding::Json })
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    pub name: String,
    pub upstream: String,
    /// Its name at the upstream, where that is another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// How many tokens it takes in at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<Price>,
}

/// As it is written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    kind: Api,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_env: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    key_secret: Option<String>,
    #[serde(default = "api_key")]
    auth: Auth,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    login: Option<Renewal>,
}

const fn api_key() -> Auth {
    Auth::ApiKey
}

fn is_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

fn is_variable(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

pub(crate) fn read_upstreams(written: serde_json::Value) -> Result<serde_json::Value, String> {
    let mut upstreams: BTreeMap<String, Written> =
        serde_json::from_value(written).map_err(|error| error.to_string())?;
    for (name, upstream) in &mut upstreams {
        if !is_name(name) {
            return Err(format!("`{name}` is not a name: a-z, 0-9 and `-`"));
        }
        if let Some(written) = &mut upstream.url {
            url::check_base(written).map_err(|detail| format!("the URL of {name}: {detail}"))?;
            written.truncate(written.trim_end_matches('/').len());
        } else if !BUILT_IN.iter().any(|built_in| built_in.api.as_str() == name.as_str()) {
            return Err(format!("{name} has no url"));
        }
        if let Some(login) = &upstream.login {
            url::check_base(&login.token_url).map_err(|detail| format!("login.token_url of {name}: {detail}"))?;
        }
        match (&upstream.key_env, &upstream.key_secret) {
            (Some(_), Some(_)) => return Err(format!("{name} has both key_env and key_secret: one of them")),
            (Some(variable), None) if !is_variable(variable) => {
                return Err(format!("key_env of {name} is the name of a variable, not the key"));
            }
            (None, Some(secret)) if !atoll_core::secret::is_name(secret) => {
                return Err(format!("key_secret of {name} is the name of a secret, like ZAI_API_KEY"));
            }
            (Some(_), None) | (None, Some(_) | None) => {}
        }
    }
    serde_json::to_value(upstreams).map_err(|error| error.to_string())
}

pub(crate) fn read_models(written: serde_json::Value) -> Result<serde_json::Value, String> {
    let models: Vec<Model> = serde_json::from_value(written).map_err(|error| error.to_string())?;
    for (index, model) in models.iter().enumerate() {
        let names = [Some(&model.name), model.model.as_ref()];
        let is_plain = |name: &&String| !name.is_empty() && name.len() <= 200 && !name.chars().any(char::is_control);
        if !names.iter().flatten().all(is_plain) {
            return Err("a model has no name".to_owned());
        }
        let name = &model.name;
        if model.price.is_some_and(|price| !price.is_sound()) {
            return Err(format!("the price of {name} is not in dollars from 0 to 1000000"));
        }
        if models[..index].iter().any(|other| other.name == *name) {
            return Err(format!("{name} is there twice"));
        }
    }
    serde_json::to_value(models).map_err(|error| error.to_string())
}

fn taken<T: serde::de::DeserializeOwned + Default>(values: &Values, key: &str) -> T {
    match values.get(key) {
        Some(Value::Structure(json)) => serde_json::from_value(json.clone()).unwrap_or_default(),
        _ => T::default(),
    }
}

fn text(values: &Values, key: &str) -> Option<String> {
    match values.get(key) {
        Some(Value::Text(text)) => Some(text.clone()),
        _ => None,
    }
}

fn secret(values: &Values, key: &str) -> Option<SecretString> {
    match values.get(key) {
        Some(Value::Secret(secret)) => Some(secret.clone()),
        _ => None,
    }
}

fn built_in(values: &Values, found: &BuiltIn) -> Upstream {
    let url = text(values, found.base).unwrap_or_else(|| found.url.to_owned());
    Upstream {
        name: found.api.to_string(),
        api: found.api,
        login: usual_login(&url),
        url,
        key: secret(values, found.key),
        secret: Some(found.variable.to_owned()),
        auth: Auth::ApiKey,
        needs_key: values.get(found.base).is_none(),
    }
}

fn written(values: &Values, name: &str, written: Written, env: &BTreeMap<String, String>) -> Upstream {
    let base = BUILT_IN.iter().find(|found| found.api == written.kind).map(|found| built_in(values, found));
    let is_built_in = name == written.kind.as_str();
    let by_itself = |name: &String| env.get(name).filter(|value| !value.is_empty()).map(|value| value.as_str().into());
    let standard = base.as_ref().filter(|_| is_built_in && written.key_env.is_none() && written.key_secret.is_none());
    let is_elsewhere = written.url.is_some() && written.key_env.is_none() && written.key_secret.is_none();
    let url = written.url.or_else(|| base.as_ref().map(|base| base.url.clone())).unwrap_or_default();
    Upstream {
        name: name.to_owned(),
        needs_key: !is_elsewhere,
        api: written.kind,
        login: written.login.or_else(|| usual_login(&url)),
        url,
        key: written.key_env.as_ref().and_then(by_itself).or_else(|| standard.and_then(|base| base.key.clone())),
        secret: written.key_secret.or_else(|| standard.and_then(|base| base.secret.clone())),
        auth: written.auth,
    }
}

/// Brings the keys of all upstreams together. What a listed model needs must be there.
pub(crate) fn resolve(values: &mut Values, env: &BTreeMap<String, String>, problems: &mut Vec<Problem>) {
    if !values.are_sound(&["upstreams", "models"]) {
        return;
    }
    let named: BTreeMap<String, Written> = taken(values, "upstreams");
    let listed: Vec<Model> = taken(values, "models");
    let mut missing = |values: &Values, detail: String| {
        problems.push(Problem::Conflict { key: "models", place: values.source("models"), detail });
    };
    for model in &listed {
        let (name, upstream) = (&model.name, model.upstream.as_str());
        match (named.get(upstream), BUILT_IN.iter().find(|found| found.api.as_str() == upstream)) {
            (Some(Written { key_env: Some(variable), .. }), _) => {
                if env.get(variable).is_none_or(String::is_empty) {
                    missing(values, format!("{name} is served by {upstream}, which needs its key: set {variable}"));
                }
            }
            // A stored secret can be set while the server runs; a place of one's own may want no key at all.
            (Some(Written { key_secret: Some(_), .. } | Written { url: Some(_), .. }), _) => {}
            (_, Some(found)) => {
                let own_place = values.get(found.base).is_some();
                if values.get(found.key).is_none() && !own_place && values.are_sound(&[found.key, found.base]) {
                    let (key, variable) = (found.key, found.variable);
                    missing(
                        values,
                        format!("{name} is served by {upstream}, which needs its key: set `{key}` or {variable}"),
                    );
                }
            }
            (_, None) => {
                let known = BUILT_IN.iter().map(|found| found.api.as_str()).chain(named.keys().map(String::as_str));
                let known = known.collect::<Vec<_>>().join(", ");
                missing(
                    values,
                    format!("{name} is served by `{upstream}`, which is not in `upstreams`; there are {known}"),
                );
            }
        }
    }
    let mut upstreams: Vec<Upstream> = BUILT_IN
        .iter()
        .filter(|found| !named.contains_key(found.api.as_str()))
        .map(|found| built_in(values, found))
        .collect();
    for (name, as_written) in named {
        let upstream = written(values, &name, as_written, env);
        values.secrets.extend(upstream.key.clone());
        upstreams.push(upstream);
    }
    values.models = Models { upstreams, listed };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Inputs, load};
    use secrecy::ExposeSecret;
    use serde_json::json;

    fn loaded(env: &[(&str, &str)]) -> Result<Models, String> {
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let inputs = Inputs { env, home: Some("/home/ada".into()), cwd: "/nowhere/at/all".into(), ..Inputs::default() };
        load(&inputs).map(|loaded| loaded.config.models).map_err(|error| error.to_string())
    }

    fn one<'a>(models: &'a Models, name: &str) -> &'a Upstream {
        models.upstreams.iter().find(|upstream| upstream.name == name).unwrap()
    }

    #[test]
    fn one_variable_is_all_that_one_needs() {
        let models = loaded(&[("ANTHROPIC_API_KEY", "sk-ant-hidden")]).unwrap();
        let anthropic = one(&models, "anthropic");
        assert_eq!(anthropic.url, "https://api.anthropic.com");
        assert_eq!(anthropic.key.as_ref().unwrap().expose_secret(), "sk-ant-hidden");
        assert!(one(&models, "openai").key.is_none() && models.listed.is_empty());
        assert!(!format!("{models:?}").contains("hidden"));
    }

    #[test]
    fn logins_are_renewed_where_the_host_s_owner_does_it_or_as_written() {
        let upstreams = json!({
            "anthropic": { "kind": "anthropic" },
            "chatgpt": { "kind": "openai", "url": "https://chatgpt.com/backend-api/codex", "key_secret": "LOGIN" },
            "near": { "kind": "anthropic", "url": "https://api.anthropic.com.example", "key_secret": "LOGIN" },
            "own": { "kind": "openai", "url": "http://x", "key_secret": "LOGIN", "login": { "token_url": "http://x/t", "client_id": "me" } },
        });
        let models = loaded(&[("ATOLL_UPSTREAMS", &upstreams.to_string())]).unwrap();
        let place = |name: &str| one(&models, name).login.as_ref().map(|login| (login.token_url.as_str(), login.body));
        assert_eq!(place("anthropic"), Some(("https://console.anthropic.com/v1/oauth/token", Encoding::Json)));
        assert_eq!(place("chatgpt"), Some(("https://auth.openai.com/oauth/token", Encoding::Json)));
        assert_eq!(place("near"), None);
        assert_eq!(place("own"), Some(("http://x/t", Encoding::Form)));
        let elsewhere = loaded(&[("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")]).unwrap();
        assert!(one(&elsewhere, "anthropic").login.is_none(), "a login goes to nobody by accident");
    }

    #[test]
    fn another_place_has_its_own_key_which_is_a_secret() {
        let upstreams = json!({ "zai": {
            "kind": "anthropic", "url": "https://api.z.ai/api/anthropic/", "key_env": "ZAI_API_KEY", "auth": "bearer"
        }});
        let models = json!([{ "name": "glm-4.6", "upstream": "zai", "context": 128_000,
            "price": { "input": 0.6, "output": 2.2, "cache_read": 0.11 } }]);
        let (upstreams, models) = (upstreams.to_string(), models.to_string());
        let env = [("ATOLL_UPSTREAMS", upstreams.as_str()), ("ATOLL_MODELS", models.as_str())];
        let refused = loaded(&env).unwrap_err();
        assert!(refused.contains("glm-4.6") && refused.contains("set ZAI_API_KEY"), "{refused}");
        let found = loaded(&[env[0], env[1], ("ZAI_API_KEY", "zai-hidden")]).unwrap();
        let zai = one(&found, "zai");
        assert_eq!((zai.url.as_str(), zai.auth), ("https://api.z.ai/api/anthropic", Auth::Bearer));
        assert_eq!(zai.key.as_ref().unwrap().expose_secret(), "zai-hidden");
        assert_eq!(found.listed[0].price.unwrap().cache_read, Some(0.11));
    }

    #[test]
    fn a_model_without_its_key_stops_the_start() {
        let models = r#"[{"name": "gpt-5", "upstream": "openai"}]"#;
        let refused = loaded(&[("ATOLL_MODELS", models)]).unwrap_err();
        assert!(refused.contains("OPENAI_API_KEY") && refused.contains("openai.api_key"), "{refused}");
        assert!(loaded(&[("ATOLL_MODELS", models), ("OPENAI_API_KEY", "k")]).is_ok());
        assert!(loaded(&[("ATOLL_MODELS", models), ("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")]).is_ok());
        let elsewhere = r#"[{"name": "m", "upstream": "nowhere"}]"#;
        let refused = loaded(&[("ATOLL_MODELS", elsewhere)]).unwrap_err();
        assert!(refused.contains("`nowhere`") && refused.contains("anthropic, openai, gemini"), "{refused}");
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (upstreams, said) in [
            (json!({ "a b": { "kind": "openai", "url": "http://x" } }), "not a name"),
            (json!({ "a": { "kind": "openai" } }), "no url"),
            (json!({ "a": { "kind": "openai", "url": "ftp://x" } }), "http://"),
            (json!({ "a": { "kind": "openai", "url": "http://x", "key_env": "sk-123" } }), "not the key"),
            (
                json!({ "a": { "kind": "openai", "url": "http://x", "login": { "token_url": "x", "client_id": "c" } } }),
                "login.token_url of a",
            ),
            (json!({ "a": { "kind": "openai", "url": "http://x", "key_secret": "small" } }), "name of a secret"),
            (json!({ "a": { "kind": "openai", "url": "http://x", "key_env": "A", "key_secret": "B" } }), "one of them"),
            (json!({ "a": { "kind": "openai", "url": "http://x", "key": "sk" } }), "unknown field"),
        ] {
            let refused = read_upstreams(upstreams).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
        for (models, said) in [
            (json!([{ "name": "", "upstream": "a" }]), "no name"),
            (json!([{ "name": "a", "upstream": "a" }, { "name": "a", "upstream": "b" }]), "twice"),
            (json!([{ "name": "a", "upstream": "a", "price": { "input": -1.0, "output": 1.0 } }]), "dollars"),
        ] {
            let refused = read_models(models).unwrap_err();
            assert!(refused.contains(said), "{refused}");
        }
    }
}
