//! What the gateway itself answers, in the form in which each API says that something is wrong: agents show it.

use super::Body;
use super::account::{Bound, Stop};
use atoll_core::budget::{Held, Per};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::limit::Limit;
use atoll_core::model::Api;
use atoll_core::time::Timestamp;
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
    /// The answer would be made when nobody here counts any more.
    Background,
    Unpriced {
        model: String,
        /// What it would have to be counted for.
        by: Limit,
    },
    Budget {
        sandbox: SandboxId,
        bound: Bound,
        limit: i64,
        spent: i64,
        reserved: i64,
        most: i64,
    },
    ProjectBudget(Box<Shortage>),
    Unreachable {
        upstream: String,
        detail: String,
    },
    Busy,
}

/// What a project's budget has no room for. In millionths of a dollar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    pub project: ProjectId,
    pub name: String,
    /// The budget as it is.
    pub held: Held,
    /// When there is a new one.
    pub until: Option<Timestamp>,
    pub spent: i64,
    pub reserved: i64,
    pub most: i64,
}

impl Shortage {
    fn sentence(&self) -> String {
        let Self { project, name, held, until, spent, reserved, most } = self;
        let (per, this) = match held.per {
            Per::Day => (" a day", " today"),
            Per::Month => (" a month", " this month"),
            Per::Ever => (" in all", ""),
        };
        let next = until.map(|until| format!("; there is a new one from {until} on")).unwrap_or_default();
        format!(
            "the budget of project {name} ({project}) has no room for this request: it is {}{per} for all of its \
             sandboxes, {} is spent{this}{}, and it may cost up to {}{next}; raise it with `atoll project budget \
             {project} …`",
            dollars(held.micros),
            dollars(*spent),
            under_way(*reserved),
            dollars(*most)
        )
    }
}

fn under_way(reserved: i64) -> String {
    match reserved {
        0 => String::new(),
        reserved => format!(", {} is held for requests that are under way", dollars(reserved)),
    }
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
            Self::NotListed { .. } | Self::NoModel | Self::OtherApi { .. } | Self::Unreadable | Self::Background => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Unpriced { .. } => StatusCode::PAYMENT_REQUIRED,
            // Worth another try: the agent is held back until there is more, or ended.
            Self::Budget { .. } | Self::ProjectBudget(_) => StatusCode::TOO_MANY_REQUESTS,
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
            Self::Background => "`background: true` is not passed on: the answer is made when nobody counts it any \
                 more, and can't be fetched through Atoll's model gateway; leave it out"
                .to_owned(),
            Self::Unpriced { model, by } => {
                let what = match by {
                    Limit::ProjectBudget => "this sandbox's project has a budget in dollars",
                    Limit::CostUsd | Limit::Turns | Limit::TurnS | Limit::NoProgressS => {
                        "this sandbox has a limit in dollars (limits.cost_usd or continuous.cost_usd)"
                    }
                };
                format!(
                    "{what}, and the price of {model} is not known; add it with its price to `models` in the \
                     configuration of the Atoll server"
                )
            }
            Self::Budget { sandbox, bound, limit, spent, reserved, most } => {
                let (left, most) = (dollars(limit.saturating_sub(*spent).max(0)), dollars(*most));
                let others = under_way(*reserved);
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
            Self::ProjectBudget(shortage) => shortage.sentence(),
            Self::Unreachable { upstream, detail } => format!("{upstream} can't be reached by Atoll: {detail}"),
            Self::Busy => "the Atoll server has too much to do right now; try again".to_owned(),
        }
    }

    /// The reason in the sandbox's log, for what somebody outside has to do something about.
    pub const fn told_as(&self) -> Option<&'static str> {
        match self {
            Self::Budget { .. } | Self::ProjectBudget(_) => Some("budget"),
            Self::Unpriced { .. } => Some("unpriced"),
            Self::NotListed { .. } | Self::OtherApi { .. } => Some("model"),
            Self::NoKey { .. } | Self::KeyUnusable { .. } | Self::NoUpstream => Some("key"),
            Self::Unreachable { .. } => Some("unreachable"),
            Self::BadKey
            | Self::NotServed
            | Self::NoModel
            | Self::Unreadable
            | Self::Background
            | Self::TooLarge { .. }
            | Self::Busy => None,
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

    /// What there is not enough left of even when all that is under way has cost nothing.
    pub fn stop(&self) -> Option<Stop> {
        match self {
            Self::Budget { bound, limit, spent, most, .. } => {
                let stop = match bound {
                    Bound::Sandbox => Stop::Own,
                    Bound::Task => Stop::Task(*limit),
                };
                (spent.saturating_add(*most) > *limit).then_some(stop)
            }
            Self::ProjectBudget(short) => {
                (short.spent.saturating_add(short.most) > short.held.micros).then_some(Stop::Project(short.held))
            }
            Self::BadKey
            | Self::NotServed
            | Self::NoKey { .. }
            | Self::KeyUnusable { .. }
            | Self::NoUpstream
            | Self::NotListed { .. }
            | Self::NoModel
            | Self::OtherApi { .. }
            | Self::Unreadable
            | Self::Background
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
            Self::Budget { .. } | Self::ProjectBudget(_) => {
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

    #[test]
    fn a_budget_is_told_with_its_project_and_its_time() {
        let project = ProjectId::new();
        let held = Held { micros: 50_000_000, per: Per::Month, first: Some(20_000) };
        let until: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
        let short = Shortage {
            project,
            name: "parser".to_owned(),
            held,
            until: Some(until),
            spent: 49_900_000,
            reserved: 50_000,
            most: 480_000,
        };
        let refusal = Refusal::ProjectBudget(Box::new(short.clone()));
        let sentence = refusal.sentence();
        for part in [
            &format!("project parser ({project})"),
            "$50.00 a month",
            "$49.90 is spent this month, $0.05 is held",
            "up to $0.48",
            "from 2026-12-01T00:00:00",
            &format!("`atoll project budget {project} …`"),
        ] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
        assert_eq!((refusal.told_as(), refusal.stop()), (Some("budget"), Some(Stop::Project(held))));
        // It fits when the others have cost nothing: that is no reason to stand still.
        let waits = Shortage { spent: 49_500_000, most: 500_000, ..short.clone() };
        assert_eq!(Refusal::ProjectBudget(Box::new(waits)).stop(), None);
        let ever = Shortage { held: Held { per: Per::Ever, ..held }, until: None, ..short };
        let sentence = Refusal::ProjectBudget(Box::new(ever)).sentence();
        assert!(sentence.contains("$50.00 in all") && !sentence.contains("new one"), "{sentence}");
    }
}
