//! The pages that a preview shows in place of the program's.

use crate::problem::{Code, Problem};
use atoll_store::open_ports::OpenPort;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Why the proxy does not forward a request.
#[derive(Debug)]
pub enum PreviewRefusal {
    /// There is no such preview, or its creator lost access.
    Unknown,
    Expired,
    SandboxEnded,
    SandboxPaused,
    SandboxStarting,
    /// Nothing listens on the port.
    PortClosed {
        port: u16,
        open: Vec<OpenPort>,
    },
    /// The program closed the connection or sent something else than HTTP.
    BadResponse {
        port: u16,
    },
    NoResponse {
        port: u16,
    },
    TooManyRequests,
    Unsupported,
    Failed(Problem),
}

impl From<Problem> for PreviewRefusal {
    fn from(problem: Problem) -> Self {
        match problem.code {
            Code::Unauthorized | Code::Forbidden | Code::NotFound => Self::Unknown,
            Code::SandboxPaused => Self::SandboxPaused,
            Code::SandboxStarting => Self::SandboxStarting,
            Code::SandboxGone | Code::SandboxEnded => Self::SandboxEnded,
            _ => Self::Failed(problem),
        }
    }
}

impl PreviewRefusal {
    /// True if no request with this link can succeed again.
    pub const fn is_final(&self) -> bool {
        match self {
            Self::Unknown | Self::Expired | Self::SandboxEnded => true,
            Self::SandboxPaused
            | Self::SandboxStarting
            | Self::PortClosed { .. }
            | Self::BadResponse { .. }
            | Self::NoResponse { .. }
            | Self::TooManyRequests
            | Self::Unsupported
            | Self::Failed(_) => false,
        }
    }

    fn status(&self) -> StatusCode {
        match self {
            Self::Unknown => StatusCode::NOT_FOUND,
            Self::Expired | Self::SandboxEnded => StatusCode::GONE,
            Self::SandboxPaused | Self::SandboxStarting => StatusCode::CONFLICT,
            Self::PortClosed { .. } | Self::BadResponse { .. } => StatusCode::BAD_GATEWAY,
            Self::NoResponse { .. } => StatusCode::GATEWAY_TIMEOUT,
            Self::TooManyRequests => StatusCode::TOO_MANY_REQUESTS,
            Self::Unsupported => StatusCode::METHOD_NOT_ALLOWED,
            Self::Failed(problem) => {
                StatusCode::from_u16(problem.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
            }
        }
    }

    /// A heading and a sentence that says what to do.
    fn text(&self) -> (&'static str, String) {
        let plain = |heading, text: &str| (heading, text.to_owned());
        match self {
            Self::Unknown => {
                plain("No such preview", "The link was revoked, or it is not complete. Create another one.")
            }
            Self::Expired => plain("The preview has expired", "Create another one on the sandbox's page."),
            Self::SandboxEnded => plain("The preview is stale", "Its sandbox has stopped, so this link leads nowhere."),
            Self::SandboxPaused => plain("The sandbox is paused", "Resume it and load this page again."),
            Self::SandboxStarting => plain("The sandbox is starting", "Load this page again in a moment."),
            Self::PortClosed { port, open } => ("Nothing listens on this port", describe_ports(*port, open)),
            Self::BadResponse { port } => {
                ("No answer that a browser can show", format!("The program on port {port} did not answer with HTTP."))
            }
            Self::NoResponse { port } => {
                ("No answer in time", format!("The program on port {port} accepted the request but did not answer."))
            }
            Self::TooManyRequests => {
                plain("Too many requests", "Other requests to this sandbox are still open. Close some of its previews.")
            }
            Self::Unsupported => plain("Unsupported request", "Previews forward neither CONNECT nor TRACE."),
            Self::Failed(problem) => (problem.code.title(), problem.detail.clone()),
        }
    }
}

fn describe_ports(port: u16, open: &[OpenPort]) -> String {
    if open.is_empty() {
        return format!("No program in the sandbox listens on port {port}, or on any other.");
    }
    let name = |OpenPort { port, program, .. }: &OpenPort| match program {
        Some(program) => format!("{port} ({program})"),
        None => port.to_string(),
    };
    let names: Vec<String> = open.iter().map(name).collect();
    format!("No program in the sandbox listens on port {port}. Open ports: {}.", names.join(", "))
}

fn escape_html(text: &str) -> String {
    text.chars().fold(String::with_capacity(text.len()), |mut escaped, c| {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c if c.is_control() => escaped.push(char::REPLACEMENT_CHARACTER),
            c => escaped.push(c),
        }
        escaped
    })
}

impl IntoResponse for PreviewRefusal {
    fn into_response(self) -> Response {
        let (heading, text) = self.text();
        let page = format!(
            "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{heading}</title>\
             <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\">\
             <style>body{{font:16px/1.5 system-ui,sans-serif;max-width:40em;margin:15vh auto;padding:0 1em}}\
             small{{opacity:.7}}</style><h1>{heading}</h1><p>{}</p><p><small>Atoll preview</small></p></html>\n",
            escape_html(&text)
        );
        let headers = [
            (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
            (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
            (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
            (
                header::CONTENT_SECURITY_POLICY,
                HeaderValue::from_static("default-src 'none'; style-src 'unsafe-inline'"),
            ),
        ];
        (self.status(), headers, page).into_response()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::time::Timestamp;

    #[test]
    fn lists_the_open_ports_and_escapes_program_names() {
        let open = |port, program: Option<&str>| OpenPort {
            port,
            program: program.map(str::to_owned),
            opened_at: Timestamp::from_micros(0),
        };
        let text = describe_ports(80, &[open(3000, Some("node")), open(5173, None)]);
        assert_eq!(text, "No program in the sandbox listens on port 80. Open ports: 3000 (node), 5173.");
        assert_eq!(escape_html("<script>'&\"\u{1b}"), "&lt;script&gt;&#39;&amp;&quot;\u{fffd}");
    }
}
