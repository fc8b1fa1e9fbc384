//! What the gateway itself answers, in the form in which each API says that something is wrong: agents show it.

use super::Body;
use super::account::Bound;
use atoll_core::id::SandboxId;
use atoll_core::model::Api;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// The placeholder is missing, or another sandbox's.
    BadKey,
    NotServed,
    /// Nobody set the upstream's key.
    NoKey {
        upstream: String,
        secret: Option<String>,
        host: String,
    },
    /// It is stored, and can't be opened: trying again does not help.
    KeyUnusable {
        upstream: String,
        detail: String,
    },
    NoUpstream,
    NotListed {
        model: String,
        listed: Vec<String>,
    },
    /// Where it matters which model it is, and the request does not say it.
    NoModel,
    OtherApi {
        model: String,
        api: Api,
    },
    Unreadable,
    TooLarge {
        most: usize,
    },
    Unpriced {
        model: String,
    },
    Budget {
        sandbox: SandboxId,
        bound: Bound,
        limit: i64,
        spent: i64,
        reserved: i64,
        most: i64,
    },
    Unreachable {
        upstream: String,
        detail: String,
    },
    Busy,
}

fn dollars(micros: i64) -> String {
    let (sign, micros) = (if micros < 0 { "-" } else { "" }, micros.unsigned_abs());
    // To the cent; less than one to its digits.
    match micros % 10_000 {
        0 => format!("{sign}${}.{:02}", micros / 1_000_000, micros % 1_000_000 / 10_000),
        _ => format!("{sign}${}.{:06}", micros / 1_000_000, micros % 1_000_000),
    }
}

impl Refusal {
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::BadKey => StatusCode::UNAUTHORIZED,
            Self::NotServed => StatusCode::NOT_FOUND,
            Self::NoKey { .. } | Self::KeyUnusable { .. } | Self::NoUpstream => StatusCode::FORBIDDEN,
            Self::NotListed { .. } | Self::NoModel | Self::OtherApi { .. } | Self::Unreadable => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unpriced { .. } => StatusCode::PAYMENT_REQUIRED,
            // Worth another try: the agent is held back until a person allows more, or ended.
            Self::Budget { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unreachable { .. } => StatusCode::BAD_GATEWAY,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub fn sentence(&self) -> String {
        match self {
            Self::BadKey => "this key is not this sandbox's; use the one that the agent was started with".to_owned(),
            Self::NotServed => {
                "Atoll's model gateway does not pass this request on; it passes those that ask a model, \
                 count tokens or list models"
                    .to_owned()
            }
            Self::NoKey { upstream, secret, host } => {
                let how = match secret {
                    Some(name) => format!(
                        "set {name} where the Atoll server is started, or run `atoll secret set {name} --upstream {host}`"
                    ),
                    None => "give it `key_env` or `key_secret` in the configuration of the Atoll server".to_owned(),
                };
                format!("Atoll has no key for {upstream}: {how}")
            }
            Self::KeyUnusable { upstream, detail } => format!("Atoll can't use its key for {upstream}: {detail}"),
            Self::NoUpstream => "nothing in the configuration of the Atoll server serves this API".to_owned(),
            Self::NotListed { model, listed } => format!(
                "the model {model} is not among those that this Atoll server allows ({}); choose one of them, or add it \
                 to `models` in its configuration",
                listed.join(", ")
            ),
            Self::NoModel => "the request names no model, and this Atoll server allows only some".to_owned(),
            Self::OtherApi { model, api } => {
                format!("the model {model} is served by the API of {api}; the agent must be set up for that one")
            }
            Self::Unreadable => "the body is not JSON that can be looked at: one object, each name once, not \
                 compressed"
                .to_owned(),
            Self::TooLarge { most } => format!("the request is larger than {} MB", most >> 20),
            Self::Unpriced { model } => format!(
                "this sandbox has a limit in dollars (limits.cost_usd or continuous.cost_usd), and the price of {model} is not known; add it \
                 with its price to `models` in the configuration of the Atoll server"
            ),
            Self::Budget { sandbox, bound, limit, spent, reserved, most } => {
                let others = match reserved {
                    0 => String::new(),
                    reserved => format!(", {} is held for requests that are under way", dollars(*reserved)),
                };
                let (left, most) = (dollars(limit.saturating_sub(*spent).max(0)), dollars(*most));
                match bound {
                    Bound::Sandbox => format!(
                        "the limit of sandbox {sandbox} has no room for this request: limits.cost_usd is {}, {} is spent{others}, \
                         and it may cost up to {most}; raise it with `atoll sandbox limits {sandbox} --cost-usd …`",
                        dollars(*limit),
                        dollars(*spent),
                    ),
                    Bound::Task => format!(
                        "the limit of this task (continuous.cost_usd) has no room for this request: {left} is left{others}, and it \
                         may cost up to {most}; the task ends here"
                    ),
                }
            }
            Self::Unreachable { upstream, detail } => format!("{upstream} can't be reached by Atoll: {detail}"),
            Self::Busy => "the Atoll server has too much to do right now; try again".to_owned(),
        }
    }

    /// The reason in the sandbox's log, for what somebody outside has to do something about.
    pub const fn told_as(&self) -> Option<&'static str> {
        match self {
            Self::Budget { .. } => Some("budget"),
            Self::Unpriced { .. } => Some("unpriced"),
            Self::NotListed { .. } | Self::OtherApi { .. } => Some("model"),
            Self::NoKey { .. } | Self::KeyUnusable { .. } | Self::NoUpstream => Some("key"),
            Self::Unreachable { .. } => Some("unreachable"),
            Self::BadKey | Self::NotServed | Self::NoModel | Self::Unreadable | Self::TooLarge { .. } | Self::Busy => {
                None
            }
        }
    }

    /// The word that each API has for this kind of thing.
    fn word(&self, api: Api) -> &'static str {
        let status = self.status();
        match (api, status) {
            (Api::Anthropic, StatusCode::UNAUTHORIZED) => "authentication_error",
            (Api::Anthropic, StatusCode::PAYMENT_REQUIRED) => "billing_error",
            (Api::Anthropic, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
            (Api::OpenAi, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_exceeded",
            (Api::Gemini, StatusCode::TOO_MANY_REQUESTS) => "RESOURCE_EXHAUSTED",
            (Api::Anthropic, StatusCode::FORBIDDEN) => "permission_error",
            (Api::Anthropic, StatusCode::NOT_FOUND) => "not_found_error",
            (Api::Anthropic, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
            (Api::Anthropic, _) if status.is_server_error() => "api_error",
            (Api::OpenAi, StatusCode::UNAUTHORIZED) => "invalid_api_key",
            (Api::OpenAi, StatusCode::PAYMENT_REQUIRED) => "insufficient_quota",
            (Api::OpenAi, _) if status.is_server_error() => "server_error",
            (Api::Anthropic | Api::OpenAi, _) => "invalid_request_error",
            (Api::Gemini, StatusCode::UNAUTHORIZED) => "UNAUTHENTICATED",
            (Api::Gemini, StatusCode::PAYMENT_REQUIRED | StatusCode::FORBIDDEN) => "PERMISSION_DENIED",
            (Api::Gemini, StatusCode::NOT_FOUND) => "NOT_FOUND",
            (Api::Gemini, _) if status.is_server_error() => "UNAVAILABLE",
            (Api::Gemini, _) => "INVALID_ARGUMENT",
        }
    }

    /// Whose limit has not enough left even when all that is under way has cost nothing, and which it is.
    pub const fn spent_out(&self) -> Option<(Bound, i64)> {
        match self {
            Self::Budget { bound, limit, spent, most, .. } if spent.saturating_add(*most) > *limit => {
                Some((*bound, *limit))
            }
            Self::Budget { .. }
            | Self::BadKey
            | Self::NotServed
            | Self::NoKey { .. }
            | Self::KeyUnusable { .. }
            | Self::NoUpstream
            | Self::NotListed { .. }
            | Self::NoModel
            | Self::OtherApi { .. }
            | Self::Unreadable
            | Self::TooLarge { .. }
            | Self::Unpriced { .. }
            | Self::Unreachable { .. }
            | Self::Busy => None,
        }
    }

    pub fn response(&self, api: Api) -> Response<Body> {
        let (status, message, word) = (self.status(), self.sentence(), self.word(api));
        let body = match api {
            Api::Anthropic => json!({ "type": "error", "error": { "type": word, "message": message } }),
            Api::OpenAi => json!({ "error": { "message": message, "type": word, "param": null, "code": word } }),
            Api::Gemini => json!({ "error": { "code": status.as_u16(), "message": message, "status": word } }),
        };
        let body = Full::from(body.to_string()).map_err(|never| match never {}).boxed();
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        match self {
            Self::Busy => drop(headers.insert(RETRY_AFTER, HeaderValue::from_static("1"))),
            Self::Budget { .. } => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("2"));
                headers.insert("x-should-retry", HeaderValue::from_static("true"));
            }
            // Clients of Anthropic's API ask the answer itself whether another try makes sense.
            _ if status.is_client_error() => {
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
            _ => {}
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn said(refusal: &Refusal, api: Api) -> serde_json::Value {
        let body = refusal.response(api).into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn each_api_hears_it_in_its_own_form() {
        let refusal = Refusal::BadKey;
        let anthropic = said(&refusal, Api::Anthropic).await;
        assert_eq!(
            (&anthropic["type"], &anthropic["error"]["type"]),
            (&json!("error"), &json!("authentication_error"))
        );
        assert_eq!(said(&refusal, Api::OpenAi).await["error"]["code"], "invalid_api_key");
        assert_eq!(said(&refusal, Api::Gemini).await["error"]["code"], 401);
    }

    #[test]
    fn a_limit_is_told_in_dollars() {
        let sandbox = SandboxId::new();
        let of = |bound| Refusal::Budget { sandbox, bound, limit: 500_000, spent: 120_000, reserved: 0, most: 480_123 };
        let refusal = of(Bound::Sandbox);
        let sentence = refusal.sentence();
        for part in ["limits.cost_usd is $0.50", "$0.12 is spent", "up to $0.480123", &sandbox.to_string()] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
        assert!(!sentence.contains("under way"));
        let sentence = of(Bound::Task).sentence();
        assert!(sentence.contains("continuous.cost_usd") && sentence.contains("$0.38 is left"), "{sentence}");
        assert_eq!(dollars(1), "$0.000001");
        assert_eq!(dollars(12_340_000), "$12.34");
    }
}
