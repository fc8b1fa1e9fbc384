//! Which requests the gateway takes, and what each is. A key opens all of an account at an upstream, files and stored
//! answers of others among it: so what passes is listed here, and everything else is refused.

use atoll_core::model::Api;
use axum::http::Method;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A model works, which costs.
    Work,
    /// Names a model and costs nothing.
    Count,
    /// Which models there are.
    Look,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    pub api: Api,
    pub purpose: Purpose,
    /// Below the upstream's URL, up to a model that stands in it.
    pub path: String,
    /// Where the model stands in the path: itself, and what follows it.
    pub in_path: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    Route(Route),
    /// Of the gateway by its beginning, and nothing that it serves.
    Unknown(Api),
    /// Not for the gateway.
    Elsewhere,
}

pub fn find(method: &Method, path: &str) -> Found {
    for api in Api::ALL {
        let Some(below) = path.strip_prefix('/').and_then(|path| path.strip_prefix(api.as_str())) else { continue };
        if below.is_empty() || below.starts_with('/') {
            return route(*api, method, below).map_or(Found::Unknown(*api), Found::Route);
        }
    }
    Found::Elsewhere
}

fn route(api: Api, method: &Method, below: &str) -> Option<Route> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@".contains(&byte);
    if !below.bytes().all(is_plain) || below.contains("//") || below.contains("..") {
        return None;
    }
    let below = match api {
        Api::Anthropic | Api::Gemini => below,
        // The base URL of this API holds the version.
        Api::OpenAi => below.strip_prefix("/v1")?,
    };
    let (first, rest) = below.strip_prefix('/')?.split_once('/').unwrap_or((below.strip_prefix('/')?, ""));
    let (version, resource) = match api {
        Api::OpenAi => ("", below.strip_prefix('/')?),
        Api::Anthropic | Api::Gemini => (first, rest),
    };
    if *method == Method::GET || *method == Method::HEAD {
        let is_models = resource == "models" || resource.starts_with("models/");
        let is_version = api == Api::OpenAi || is_version(version);
        return (is_models && is_version).then(|| plain(api, Purpose::Look, below));
    }
    if *method != Method::POST {
        return None;
    }
    match (api, version, resource) {
        (Api::Anthropic, "v1", "messages") => Some(plain(api, Purpose::Work, below)),
        (Api::Anthropic, "v1", "messages/count_tokens") => Some(plain(api, Purpose::Count, below)),
        (Api::OpenAi, _, "chat/completions" | "responses" | "responses/compact" | "completions" | "embeddings") => {
            Some(plain(api, Purpose::Work, below))
        }
        (Api::Gemini, version, resource) if is_version(version) => {
            let (model, action) = resource.strip_prefix("models/")?.rsplit_once(':')?;
            let purpose = match action {
                "generateContent" | "streamGenerateContent" | "embedContent" | "batchEmbedContents" => Purpose::Work,
                "countTokens" => Purpose::Count,
                _ => return None,
            };
            let in_path = Some((model.to_owned(), format!(":{action}"))).filter(|(model, _)| !model.is_empty())?;
            Some(Route { api, purpose, path: format!("/{version}/models/"), in_path: Some(in_path) })
        }
        (Api::Anthropic | Api::OpenAi | Api::Gemini, _, _) => None,
    }
}

fn plain(api: Api, purpose: Purpose, below: &str) -> Route {
    Route { api, purpose, path: below.to_owned(), in_path: None }
}

/// `v1`, `v1beta`, `v1alpha`.
fn is_version(text: &str) -> bool {
    matches!(text, "v1" | "v1beta" | "v1alpha")
}

impl Route {
    /// With the model under the name that it has at the upstream.
    pub fn path_for(&self, model: Option<&str>) -> String {
        match &self.in_path {
            Some((written, action)) => format!("{}{}{action}", self.path, model.unwrap_or(written)),
            None => self.path.clone(),
        }
    }
}

/// Without the key, which this API also takes there.
pub fn query_without_key(query: &str) -> String {
    let kept = query.split('&').filter(|pair| !pair.is_empty() && pair.split('=').next() != Some("key"));
    kept.collect::<Vec<_>>().join("&")
}

pub fn key_in_query(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("key="))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> Found {
        find(&method.parse().unwrap(), path)
    }

    #[test]
    fn each_api_has_its_own_paths() {
        for (method, path, purpose, above) in [
            ("POST", "/anthropic/v1/messages", Purpose::Work, "/v1/messages"),
            ("POST", "/anthropic/v1/messages/count_tokens", Purpose::Count, "/v1/messages/count_tokens"),
            ("GET", "/anthropic/v1/models/claude-x", Purpose::Look, "/v1/models/claude-x"),
            ("POST", "/openai/v1/chat/completions", Purpose::Work, "/chat/completions"),
            ("POST", "/openai/v1/responses", Purpose::Work, "/responses"),
            ("GET", "/openai/v1/models", Purpose::Look, "/models"),
            (
                "POST",
                "/gemini/v1beta/models/gemini-3-pro:streamGenerateContent",
                Purpose::Work,
                "/v1beta/models/gemini-3-pro:streamGenerateContent",
            ),
            ("POST", "/gemini/v1/models/g:countTokens", Purpose::Count, "/v1/models/g:countTokens"),
            ("GET", "/gemini/v1beta/models", Purpose::Look, "/v1beta/models"),
        ] {
            let Found::Route(route) = found(method, path) else { panic!("{path}") };
            assert_eq!((route.purpose, route.path_for(None).as_str()), (purpose, above), "{path}");
        }
    }

    #[test]
    fn what_is_not_listed_is_not_served() {
        for (method, path) in [
            ("GET", "/anthropic/v1/files"),
            ("POST", "/anthropic/v1/messages/batches"),
            ("GET", "/anthropic/v1/messages"),
            ("DELETE", "/anthropic/v1/models"),
            ("POST", "/anthropic/v1/messages/../files"),
            ("POST", "/anthropic//v1/messages"),
            ("POST", "/anthropic/v1/messages%2Fbatches"),
            ("GET", "/anthropic/v1/models/../files"),
            ("GET", "/anthropic/v1/models/%2e%2e/files"),
            ("POST", "/anthropic"),
            ("GET", "/openai/v1/responses/resp_1"),
            ("GET", "/openai/v1/files"),
            ("POST", "/openai/chat/completions"),
            ("GET", "/openai/v1"),
            ("POST", "/gemini/v1beta/models/:generateContent"),
            ("POST", "/gemini/v1beta/models/x:deleteAll"),
            ("POST", "/gemini/v2/models/x:generateContent"),
        ] {
            assert!(matches!(found(method, path), Found::Unknown(_)), "{path}: {:?}", found(method, path));
        }
        for path in ["/", "/anthropicx/v1/messages", "/api/v1", "", "anthropic/v1/messages", "/x/anthropic/v1/messages"]
        {
            assert_eq!(found("POST", path), Found::Elsewhere, "{path}");
        }
    }

    #[test]
    fn a_model_in_the_path_can_have_another_name_above() {
        let Found::Route(route) = found("POST", "/gemini/v1beta/models/fast:generateContent") else { panic!() };
        assert_eq!(route.in_path.as_ref().unwrap().0, "fast");
        assert_eq!(route.path_for(Some("gemini-3-flash")), "/v1beta/models/gemini-3-flash:generateContent");
    }

    #[test]
    fn a_key_in_the_query_goes_no_further() {
        assert_eq!(query_without_key("alt=sse&key=abc&x=1"), "alt=sse&x=1");
        assert_eq!(query_without_key("key=abc"), "");
        assert_eq!(query_without_key("keys=1&beta=true"), "keys=1&beta=true");
        assert_eq!(key_in_query("alt=sse&key=abc"), Some("abc"));
        assert_eq!(key_in_query("alt=sse"), None);
    }
}
