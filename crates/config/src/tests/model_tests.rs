//! The keys `upstreams` and `models`.

use crate::models::{Upstream, check_models, check_upstreams};
use crate::{Config, Inputs, load_config};
use atoll_core::model::{AuthScheme, BodyEncoding};
use secrecy::ExposeSecret;
use serde_json::json;

fn load_env(env: &[(&str, &str)]) -> Result<Config, String> {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let inputs = Inputs { env, home: Some("/home/ada".into()), cwd: "/nowhere/at/all".into(), ..Inputs::default() };
    load_config(&inputs).map(|loaded| loaded.config).map_err(|error| error.to_string())
}

fn upstream<'a>(config: &'a Config, name: &str) -> &'a Upstream {
    config.model_upstreams.iter().find(|upstream| upstream.name == name).unwrap()
}

#[test]
fn one_variable_configures_a_built_in_upstream() {
    let config = load_env(&[("ANTHROPIC_API_KEY", "sk-ant-hidden")]).unwrap();
    let anthropic = upstream(&config, "anthropic");
    assert_eq!(anthropic.url, "https://api.anthropic.com");
    assert_eq!(anthropic.key.as_ref().unwrap().expose_secret(), "sk-ant-hidden");
    assert!(upstream(&config, "openai").key.is_none() && config.models.is_empty());
    assert!(!format!("{config:?}").contains("hidden"));
}

#[test]
fn login_endpoints_follow_the_host_or_the_entry() {
    let upstreams = json!({
        "anthropic": { "kind": "anthropic" },
        "chatgpt": { "kind": "openai", "url": "https://chatgpt.com/backend-api/codex", "key_secret": "LOGIN" },
        "near": { "kind": "anthropic", "url": "https://api.anthropic.com.example", "key_secret": "LOGIN" },
        "own": { "kind": "openai", "url": "http://x", "key_secret": "LOGIN", "login": { "token_url": "http://x/t", "client_id": "me" } },
    });
    let config = load_env(&[("ATOLL_UPSTREAMS", &upstreams.to_string())]).unwrap();
    let endpoint =
        |name: &str| upstream(&config, name).login.as_ref().map(|login| (login.token_url.as_str(), login.body));
    assert_eq!(endpoint("anthropic"), Some(("https://console.anthropic.com/v1/oauth/token", BodyEncoding::Json)));
    assert_eq!(endpoint("chatgpt"), Some(("https://auth.openai.com/oauth/token", BodyEncoding::Json)));
    assert_eq!(endpoint("near"), None);
    assert_eq!(endpoint("own"), Some(("http://x/t", BodyEncoding::Form)));
    let elsewhere = load_env(&[("ANTHROPIC_BASE_URL", "http://127.0.0.1:1")]).unwrap();
    assert!(upstream(&elsewhere, "anthropic").login.is_none(), "a login is never sent to an unknown host");
}

#[test]
fn an_upstream_reads_its_key_from_its_own_variable() {
    let upstreams = json!({ "zai": {
        "kind": "anthropic", "url": "https://api.z.ai/api/anthropic/", "key_env": "ZAI_API_KEY", "auth": "bearer"
    }});
    let models = json!([{ "name": "glm-4.6", "upstream": "zai", "context": 128_000,
        "price": { "input": 0.6, "output": 2.2, "cache_read": 0.11 } }]);
    let (upstreams, models) = (upstreams.to_string(), models.to_string());
    let env = [("ATOLL_UPSTREAMS", upstreams.as_str()), ("ATOLL_MODELS", models.as_str())];
    let refused = load_env(&env).unwrap_err();
    assert!(refused.contains("glm-4.6") && refused.contains("set ZAI_API_KEY"), "{refused}");
    let found = load_env(&[env[0], env[1], ("ZAI_API_KEY", "zai-hidden")]).unwrap();
    let zai = upstream(&found, "zai");
    assert_eq!((zai.url.as_str(), zai.auth), ("https://api.z.ai/api/anthropic", AuthScheme::Bearer));
    assert_eq!(zai.key.as_ref().unwrap().expose_secret(), "zai-hidden");
    assert_eq!(found.models[0].price.unwrap().cache_read, Some(0.11));
}

#[test]
fn a_listed_model_without_a_key_is_rejected() {
    let models = r#"[{"name": "gpt-5", "upstream": "openai"}]"#;
    let refused = load_env(&[("ATOLL_MODELS", models)]).unwrap_err();
    assert!(refused.contains("OPENAI_API_KEY") && refused.contains("openai.api_key"), "{refused}");
    assert!(load_env(&[("ATOLL_MODELS", models), ("OPENAI_API_KEY", "k")]).is_ok());
    assert!(load_env(&[("ATOLL_MODELS", models), ("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")]).is_ok());
    let elsewhere = r#"[{"name": "m", "upstream": "nowhere"}]"#;
    let refused = load_env(&[("ATOLL_MODELS", elsewhere)]).unwrap_err();
    assert!(refused.contains("`nowhere`") && refused.contains("anthropic, openai, gemini"), "{refused}");
}

#[test]
fn rejects_bad_entries() {
    fn parse<T: serde::de::DeserializeOwned>(json: serde_json::Value) -> Result<T, String> {
        serde_json::from_value(json).map_err(|error| error.to_string())
    }
    for (upstreams, expected) in [
        (json!({ "a b": { "kind": "openai", "url": "http://x" } }), "not a name"),
        (json!({ "a": { "kind": "openai" } }), "no url"),
        (json!({ "a": { "kind": "openai", "url": "ftp://x" } }), "http://"),
        (json!({ "a": { "kind": "openai", "url": "http://x", "key_env": "sk-123" } }), "not the key"),
        (
            json!({ "a": { "kind": "openai", "url": "http://x", "login": { "token_url": "x", "client_id": "c" } } }),
            "login.token_url of a",
        ),
        (json!({ "a": { "kind": "openai", "url": "http://x", "key_secret": "small" } }), "name of a secret"),
        (json!({ "a": { "kind": "openai", "url": "http://x", "key_env": "A", "key_secret": "B" } }), "set one of them"),
        (json!({ "a": { "kind": "openai", "url": "http://x", "key": "sk" } }), "unknown field"),
    ] {
        let refused = parse(upstreams).and_then(check_upstreams).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
    for (models, expected) in [
        (json!([{ "name": "", "upstream": "a" }]), "no name"),
        (json!([{ "name": "a", "upstream": "a" }, { "name": "a", "upstream": "b" }]), "twice"),
        (json!([{ "name": "a", "upstream": "a", "price": { "input": -1.0, "output": 1.0 } }]), "dollars"),
    ] {
        let refused = parse(models).and_then(check_models).unwrap_err();
        assert!(refused.contains(expected), "{refused}");
    }
}
