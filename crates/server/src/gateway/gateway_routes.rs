//! The requests that the gateway forwards. A key gives access to a whole upstream account, including stored files and
//! responses, so the gateway refuses every path that is not listed here.

use atoll_core::model::ModelApi;
use axum::http::Method;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPurpose {
    /// Runs a model, at a cost.
    Generate,
    /// Counts tokens for a model, free of charge.
    CountTokens,
    /// Lists models.
    ListModels,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewayRoute {
    pub api: ModelApi,
    pub purpose: RequestPurpose,
    /// Path below the upstream's URL, up to a model in the path.
    pub path: String,
    /// A model in the path, and the text after it.
    pub path_model: Option<(String, String)>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RouteMatch {
    Route(GatewayRoute),
    /// Below an API's prefix, but not forwarded.
    Unknown(ModelApi),
    /// Not for the gateway.
    NotGateway,
}

pub fn match_route(method: &Method, path: &str) -> RouteMatch {
    for api in ModelApi::ALL {
        let Some(below) = path.strip_prefix('/').and_then(|path| path.strip_prefix(api.as_str())) else { continue };
        if below.is_empty() || below.starts_with('/') {
            return parse_route(*api, method, below).map_or(RouteMatch::Unknown(*api), RouteMatch::Route);
        }
    }
    RouteMatch::NotGateway
}

fn parse_route(api: ModelApi, method: &Method, below: &str) -> Option<GatewayRoute> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@".contains(&byte);
    if !below.bytes().all(is_plain) || below.contains("//") || below.contains("..") {
        return None;
    }
    let below = match api {
        ModelApi::Anthropic | ModelApi::Gemini => below,
        // The base URL of this API holds the version.
        ModelApi::OpenAi => below.strip_prefix("/v1")?,
    };
    let (first, rest) = below.strip_prefix('/')?.split_once('/').unwrap_or((below.strip_prefix('/')?, ""));
    let (version, resource) = match api {
        ModelApi::OpenAi => ("", below.strip_prefix('/')?),
        ModelApi::Anthropic | ModelApi::Gemini => (first, rest),
    };
    if *method == Method::GET || *method == Method::HEAD {
        let is_models = resource == "models" || resource.starts_with("models/");
        let is_version = api == ModelApi::OpenAi || is_version(version);
        return (is_models && is_version).then(|| fixed_route(api, RequestPurpose::ListModels, below));
    }
    if *method != Method::POST {
        return None;
    }
    match (api, version, resource) {
        (ModelApi::Anthropic, "v1", "messages") => Some(fixed_route(api, RequestPurpose::Generate, below)),
        (ModelApi::Anthropic, "v1", "messages/count_tokens") => {
            Some(fixed_route(api, RequestPurpose::CountTokens, below))
        }
        (
            ModelApi::OpenAi,
            _,
            "chat/completions" | "responses" | "responses/compact" | "completions" | "embeddings",
        ) => Some(fixed_route(api, RequestPurpose::Generate, below)),
        (ModelApi::Gemini, version, resource) if is_version(version) => {
            let (model, action) = resource.strip_prefix("models/")?.rsplit_once(':')?;
            let purpose = match action {
                "generateContent" | "streamGenerateContent" | "embedContent" | "batchEmbedContents" => {
                    RequestPurpose::Generate
                }
                "countTokens" => RequestPurpose::CountTokens,
                _ => return None,
            };
            let in_path = Some((model.to_owned(), format!(":{action}"))).filter(|(model, _)| !model.is_empty())?;
            Some(GatewayRoute { api, purpose, path: format!("/{version}/models/"), path_model: Some(in_path) })
        }
        (ModelApi::Anthropic | ModelApi::OpenAi | ModelApi::Gemini, _, _) => None,
    }
}

fn fixed_route(api: ModelApi, purpose: RequestPurpose, below: &str) -> GatewayRoute {
    GatewayRoute { api, purpose, path: below.to_owned(), path_model: None }
}

/// `v1`, `v1beta`, `v1alpha`.
fn is_version(text: &str) -> bool {
    matches!(text, "v1" | "v1beta" | "v1alpha")
}

impl GatewayRoute {
    /// The upstream reports the usage of a stream only if the request asks for it.
    pub fn reports_usage_on_request(&self) -> bool {
        self.api == ModelApi::OpenAi && matches!(self.path.as_str(), "/chat/completions" | "/completions")
    }

    /// The path at the upstream, with the upstream's name of the model.
    pub fn upstream_path(&self, model: Option<&str>) -> String {
        match &self.path_model {
            Some((written, action)) => format!("{}{}{action}", self.path, model.unwrap_or(written)),
            None => self.path.clone(),
        }
    }
}

/// Removes the key, which Gemini's API also accepts in the query.
pub fn query_without_key(query: &str) -> String {
    let pairs = query.split('&').filter(|pair| !pair.is_empty() && pair.split('=').next() != Some("key"));
    pairs.collect::<Vec<_>>().join("&")
}

pub fn query_key(query: &str) -> Option<&str> {
    query.split('&').find_map(|pair| pair.strip_prefix("key="))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(method: &str, path: &str) -> RouteMatch {
        match_route(&method.parse().unwrap(), path)
    }

    #[test]
    fn matches_the_paths_of_each_api() {
        for (method, path, purpose, above) in [
            ("POST", "/anthropic/v1/messages", RequestPurpose::Generate, "/v1/messages"),
            ("POST", "/anthropic/v1/messages/count_tokens", RequestPurpose::CountTokens, "/v1/messages/count_tokens"),
            ("GET", "/anthropic/v1/models/claude-x", RequestPurpose::ListModels, "/v1/models/claude-x"),
            ("POST", "/openai/v1/chat/completions", RequestPurpose::Generate, "/chat/completions"),
            ("POST", "/openai/v1/responses", RequestPurpose::Generate, "/responses"),
            ("GET", "/openai/v1/models", RequestPurpose::ListModels, "/models"),
            (
                "POST",
                "/gemini/v1beta/models/gemini-3-pro:streamGenerateContent",
                RequestPurpose::Generate,
                "/v1beta/models/gemini-3-pro:streamGenerateContent",
            ),
            ("POST", "/gemini/v1/models/g:countTokens", RequestPurpose::CountTokens, "/v1/models/g:countTokens"),
            ("GET", "/gemini/v1beta/models", RequestPurpose::ListModels, "/v1beta/models"),
        ] {
            let RouteMatch::Route(route) = found(method, path) else { panic!("{path}") };
            assert_eq!((route.purpose, route.upstream_path(None).as_str()), (purpose, above), "{path}");
        }
    }

    #[test]
    fn refuses_paths_that_are_not_listed() {
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
            assert!(matches!(found(method, path), RouteMatch::Unknown(_)), "{path}: {:?}", found(method, path));
        }
        for path in ["/", "/anthropicx/v1/messages", "/api/v1", "", "anthropic/v1/messages", "/x/anthropic/v1/messages"]
        {
            assert_eq!(found("POST", path), RouteMatch::NotGateway, "{path}");
        }
    }

    #[test]
    fn replaces_a_model_in_the_path() {
        let RouteMatch::Route(route) = found("POST", "/gemini/v1beta/models/fast:generateContent") else { panic!() };
        assert_eq!(route.path_model.as_ref().unwrap().0, "fast");
        assert_eq!(route.upstream_path(Some("gemini-3-flash")), "/v1beta/models/gemini-3-flash:generateContent");
    }

    #[test]
    fn removes_the_key_from_the_query() {
        assert_eq!(query_without_key("alt=sse&key=abc&x=1"), "alt=sse&x=1");
        assert_eq!(query_without_key("key=abc"), "");
        assert_eq!(query_without_key("keys=1&beta=true"), "keys=1&beta=true");
        assert_eq!(query_key("alt=sse&key=abc"), Some("abc"));
        assert_eq!(query_key("alt=sse"), None);
    }
}
