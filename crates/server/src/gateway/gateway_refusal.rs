//! The gateway's own error responses, in the error format of each API, so that agents show them.

use super::Body;
use super::sandbox_budget::{CostLimitKind, Exhausted};
use atoll_core::budget::{BudgetPause, BudgetPeriod};
use atoll_core::id::{ProjectId, SandboxId};
use atoll_core::model::ModelApi;
use atoll_core::time::Timestamp;
use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde_json::json;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GatewayRefusal {
    /// The placeholder is missing or belongs to another sandbox.
    WrongPlaceholder,
    NotServed,
    /// The upstream has no key.
    MissingKey {
        upstream: String,
        secret: Option<String>,
    },
    /// The upstream rejected the real key; a retry does not help.
    KeyRefused {
        upstream: String,
        secret: Option<String>,
    },
    /// The stored key cannot be used; a retry does not help.
    KeyUnusable {
        upstream: String,
        detail: String,
    },
    NoUpstream,
    NotListed {
        model: String,
        listed: Vec<String>,
    },
    /// The request names no model, and only listed models are allowed.
    NoModel,
    WrongApi {
        model: String,
        api: ModelApi,
    },
    Unreadable,
    TooLarge {
        most: usize,
    },
    /// The response would not be metered.
    Background,
    Budget {
        sandbox: SandboxId,
        limit_kind: CostLimitKind,
        limit: i64,
        spent: i64,
        reserved: i64,
        max_cost: i64,
    },
    ProjectBudget(Box<ProjectShortage>),
    Unreachable {
        upstream: String,
        detail: String,
    },
    Busy,
}

/// A request that exceeds a project's budget. Amounts in millionths of a dollar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProjectShortage {
    pub project: ProjectId,
    pub name: String,
    /// The current budget.
    pub budget: BudgetPause,
    /// End of the budget's period.
    pub until: Option<Timestamp>,
    pub spent: i64,
    pub reserved: i64,
    pub most: i64,
}

impl ProjectShortage {
    fn budget_message(&self) -> String {
        let Self { project, name, budget: pause, until, spent, reserved, most } = self;
        let (per, this) = match pause.per {
            BudgetPeriod::Day => (" a day", " today"),
            BudgetPeriod::Month => (" a month", " this month"),
            BudgetPeriod::Ever => (" in all", ""),
        };
        let next = until.map(|until| format!("; a new period starts at {until}")).unwrap_or_default();
        format!(
            "the budget of project {name} ({project}) is too small for this request: it is {}{per} for all of its \
             sandboxes, {} is spent{this}{}, and the request may cost up to {}{next}; raise it with `atoll project \
             budget {project} …`",
            format_dollars(pause.micros),
            format_dollars(*spent),
            reserved_note(*reserved),
            format_dollars(*most)
        )
    }
}

/// Describes setting the key of an upstream.
fn describe_key_setting(secret: Option<&str>) -> String {
    match secret {
        Some(name) => {
            format!("run `atoll secret set {name}`, or set {name} in the environment of the Atoll server")
        }
        None => "set its `key_env` or `key_secret` in the configuration of the Atoll server".to_owned(),
    }
}

fn reserved_note(reserved: i64) -> String {
    match reserved {
        0 => String::new(),
        reserved => format!(", {} is reserved for requests in flight", format_dollars(reserved)),
    }
}

fn format_dollars(micros: i64) -> String {
    let (sign, micros) = (if micros < 0 { "-" } else { "" }, micros.unsigned_abs());
    // Whole cents with two digits, anything else with six.
    match micros % 10_000 {
        0 => format!("{sign}${}.{:02}", micros / 1_000_000, micros % 1_000_000 / 10_000),
        _ => format!("{sign}${}.{:06}", micros / 1_000_000, micros % 1_000_000),
    }
}

impl GatewayRefusal {
    pub const fn status(&self) -> StatusCode {
        match self {
            Self::WrongPlaceholder => StatusCode::UNAUTHORIZED,
            Self::NotServed => StatusCode::NOT_FOUND,
            Self::MissingKey { .. } | Self::KeyRefused { .. } | Self::KeyUnusable { .. } | Self::NoUpstream => {
                StatusCode::FORBIDDEN
            }
            Self::NotListed { .. } | Self::NoModel | Self::WrongApi { .. } | Self::Unreadable | Self::Background => {
                StatusCode::BAD_REQUEST
            }
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            // Retryable: the agent is paused until there is budget, or ends.
            Self::Budget { .. } | Self::ProjectBudget(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::Unreachable { .. } => StatusCode::BAD_GATEWAY,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    pub fn message(&self) -> String {
        match self {
            Self::WrongPlaceholder => {
                "the API key does not belong to this sandbox; use the key in the agent's environment".to_owned()
            }
            Self::NotServed => {
                "Atoll's model gateway does not forward this request; it forwards requests that run a model, \
                 count tokens or list models"
                    .to_owned()
            }
            Self::MissingKey { upstream, secret } => {
                format!("Atoll has no key for {upstream}: {}", describe_key_setting(secret.as_deref()))
            }
            Self::KeyRefused { upstream, secret } => {
                format!("{upstream} refused Atoll's key (401): {}", describe_key_setting(secret.as_deref()))
            }
            Self::KeyUnusable { upstream, detail } => format!("Atoll cannot use its key for {upstream}: {detail}"),
            Self::NoUpstream => "the configuration of the Atoll server has no upstream for this API".to_owned(),
            Self::NotListed { model, listed } => format!(
                "this Atoll server does not allow the model {model}; use one of {}, or add it to `models` in the \
                 server's configuration",
                listed.join(", ")
            ),
            Self::NoModel => "the request names no model, and this Atoll server allows only listed models".to_owned(),
            Self::WrongApi { model, api } => {
                format!("the model {model} is served by the {api} API; configure the agent for that API")
            }
            Self::Unreadable => {
                "cannot read the request body: expected one uncompressed JSON object without duplicate fields"
                    .to_owned()
            }
            Self::TooLarge { most } => format!("the request is larger than {} MiB", most >> 20),
            Self::Background => {
                "`background: true` is not supported: Atoll's model gateway cannot meter or fetch a response that is \
                 created later; remove it"
                    .to_owned()
            }
            Self::Budget { sandbox, limit_kind: bound, limit, spent, reserved, max_cost: most } => {
                let (left, most) = (format_dollars(limit.saturating_sub(*spent).max(0)), format_dollars(*most));
                let others = reserved_note(*reserved);
                match bound {
                    CostLimitKind::Sandbox => format!(
                        "the cost limit of sandbox {sandbox} is too low for this request: limits.cost_usd is {}, {} is spent{others}, \
                         and the request may cost up to {most}; raise it with `atoll sandbox limits {sandbox} --cost-usd …`",
                        format_dollars(*limit),
                        format_dollars(*spent),
                    ),
                    CostLimitKind::Task => format!(
                        "the cost limit of this task (continuous.cost_usd) is too low for this request: {left} is left{others}, and \
                         the request may cost up to {most}; the task ends"
                    ),
                }
            }
            Self::ProjectBudget(shortage) => shortage.budget_message(),
            Self::Unreachable { upstream, detail } => format!("Atoll cannot reach {upstream}: {detail}"),
            Self::Busy => "the Atoll server is busy; try again".to_owned(),
        }
    }

    /// The reason in the event log, for a refusal that a person must act on.
    pub const fn log_reason(&self) -> Option<&'static str> {
        match self {
            Self::Budget { .. } | Self::ProjectBudget(_) => Some("budget"),
            Self::NotListed { .. } | Self::WrongApi { .. } => Some("model"),
            Self::MissingKey { .. } | Self::KeyRefused { .. } | Self::KeyUnusable { .. } | Self::NoUpstream => {
                Some("key")
            }
            Self::Unreachable { .. } => Some("unreachable"),
            Self::WrongPlaceholder
            | Self::NotServed
            | Self::NoModel
            | Self::Unreadable
            | Self::Background
            | Self::TooLarge { .. }
            | Self::Busy => None,
        }
    }

    /// The error code of each API for this refusal.
    fn api_error_code(&self, api: ModelApi) -> &'static str {
        let status = self.status();
        match (api, status) {
            (ModelApi::Anthropic, StatusCode::UNAUTHORIZED) => "authentication_error",
            (ModelApi::Anthropic, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_error",
            (ModelApi::OpenAi, StatusCode::TOO_MANY_REQUESTS) => "rate_limit_exceeded",
            (ModelApi::Gemini, StatusCode::TOO_MANY_REQUESTS) => "RESOURCE_EXHAUSTED",
            (ModelApi::Anthropic, StatusCode::FORBIDDEN) => "permission_error",
            (ModelApi::Anthropic, StatusCode::NOT_FOUND) => "not_found_error",
            (ModelApi::Anthropic, StatusCode::PAYLOAD_TOO_LARGE) => "request_too_large",
            (ModelApi::Anthropic, _) if status.is_server_error() => "api_error",
            (ModelApi::OpenAi, StatusCode::UNAUTHORIZED) => "invalid_api_key",
            (ModelApi::OpenAi, _) if status.is_server_error() => "server_error",
            (ModelApi::Anthropic | ModelApi::OpenAi, _) => "invalid_request_error",
            (ModelApi::Gemini, StatusCode::UNAUTHORIZED) => "UNAUTHENTICATED",
            (ModelApi::Gemini, StatusCode::FORBIDDEN) => "PERMISSION_DENIED",
            (ModelApi::Gemini, StatusCode::NOT_FOUND) => "NOT_FOUND",
            (ModelApi::Gemini, _) if status.is_server_error() => "UNAVAILABLE",
            (ModelApi::Gemini, _) => "INVALID_ARGUMENT",
        }
    }

    /// The limit that the request exceeds even if all requests in flight cost nothing.
    pub fn exhausted(&self) -> Option<Exhausted> {
        match self {
            Self::Budget { limit_kind: bound, limit, spent, max_cost: most, .. } => {
                let stop = match bound {
                    CostLimitKind::Sandbox => Exhausted::SandboxLimit,
                    CostLimitKind::Task => Exhausted::TaskLimit(*limit),
                };
                (spent.saturating_add(*most) > *limit).then_some(stop)
            }
            Self::ProjectBudget(short) => (short.spent.saturating_add(short.most) > short.budget.micros)
                .then_some(Exhausted::ProjectBudget(short.budget)),
            Self::WrongPlaceholder
            | Self::NotServed
            | Self::MissingKey { .. }
            | Self::KeyRefused { .. }
            | Self::KeyUnusable { .. }
            | Self::NoUpstream
            | Self::NotListed { .. }
            | Self::NoModel
            | Self::WrongApi { .. }
            | Self::Unreadable
            | Self::Background
            | Self::TooLarge { .. }
            | Self::Unreachable { .. }
            | Self::Busy => None,
        }
    }

    pub fn to_response(&self, api: ModelApi) -> Response<Body> {
        let (status, message, word) = (self.status(), self.message(), self.api_error_code(api));
        let body = match api {
            ModelApi::Anthropic => json!({ "type": "error", "error": { "type": word, "message": message } }),
            ModelApi::OpenAi => json!({ "error": { "message": message, "type": word, "param": null, "code": word } }),
            ModelApi::Gemini => json!({ "error": { "code": status.as_u16(), "message": message, "status": word } }),
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
            // Clients of Anthropic's API read this header before they retry.
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

    async fn response_json(refusal: &GatewayRefusal, api: ModelApi) -> serde_json::Value {
        let body = refusal.to_response(api).into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice(&body).unwrap()
    }

    #[tokio::test]
    async fn responds_in_the_error_format_of_each_api() {
        let refusal = GatewayRefusal::WrongPlaceholder;
        let anthropic = response_json(&refusal, ModelApi::Anthropic).await;
        assert_eq!(
            (&anthropic["type"], &anthropic["error"]["type"]),
            (&json!("error"), &json!("authentication_error"))
        );
        assert_eq!(response_json(&refusal, ModelApi::OpenAi).await["error"]["code"], "invalid_api_key");
        assert_eq!(response_json(&refusal, ModelApi::Gemini).await["error"]["code"], 401);
    }

    #[test]
    fn reports_a_cost_limit_in_dollars() {
        let sandbox = SandboxId::new();
        let of = |bound| GatewayRefusal::Budget {
            sandbox,
            limit_kind: bound,
            limit: 500_000,
            spent: 120_000,
            reserved: 0,
            max_cost: 480_123,
        };
        let refusal = of(CostLimitKind::Sandbox);
        let sentence = refusal.message();
        for part in ["limits.cost_usd is $0.50", "$0.12 is spent", "up to $0.480123", &sandbox.to_string()] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
        assert!(!sentence.contains("in flight"));
        let sentence = of(CostLimitKind::Task).message();
        assert!(sentence.contains("continuous.cost_usd") && sentence.contains("$0.38 is left"), "{sentence}");
        assert_eq!(format_dollars(1), "$0.000001");
        assert_eq!(format_dollars(12_340_000), "$12.34");
    }

    #[test]
    fn reports_a_budget_with_its_project_and_period() {
        let project = ProjectId::new();
        let pause = BudgetPause { micros: 50_000_000, per: BudgetPeriod::Month, first: Some(20_000) };
        let until: Timestamp = "2026-12-01T00:00:00Z".parse().unwrap();
        let short = ProjectShortage {
            project,
            name: "parser".to_owned(),
            budget: pause,
            until: Some(until),
            spent: 49_900_000,
            reserved: 50_000,
            most: 480_000,
        };
        let refusal = GatewayRefusal::ProjectBudget(Box::new(short.clone()));
        let sentence = refusal.message();
        for part in [
            &format!("project parser ({project})"),
            "$50.00 a month",
            "$49.90 is spent this month, $0.05 is reserved",
            "up to $0.48",
            "at 2026-12-01T00:00:00",
            &format!("`atoll project budget {project} …`"),
        ] {
            assert!(sentence.contains(part), "{part}: {sentence}");
        }
        assert_eq!(
            (refusal.log_reason(), refusal.exhausted()),
            (Some("budget"), Some(Exhausted::ProjectBudget(pause)))
        );
        // The request fits if the requests in flight cost nothing, so the agent is not paused.
        let waits = ProjectShortage { spent: 49_500_000, most: 500_000, ..short.clone() };
        assert_eq!(GatewayRefusal::ProjectBudget(Box::new(waits)).exhausted(), None);
        let ever = ProjectShortage { budget: BudgetPause { per: BudgetPeriod::Ever, ..pause }, until: None, ..short };
        let sentence = GatewayRefusal::ProjectBudget(Box::new(ever)).message();
        assert!(sentence.contains("$50.00 in all") && !sentence.contains("new period"), "{sentence}");
    }
}
