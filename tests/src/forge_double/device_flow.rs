//! The device flow of logins.

use super::ForgeReply;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The lifetime of GitHub's user tokens.
const LIFETIME_S: u64 = 28_800;

#[derive(Debug)]
pub(crate) struct DeviceFlow {
    answer: Option<Option<String>>,
    polls: u32,
    lifetime_s: u64,
    /// The access token of the login, and the number of its refresh token, which works once.
    issued: Option<(String, u32)>,
}

impl Default for DeviceFlow {
    fn default() -> Self {
        Self { answer: None, polls: 0, lifetime_s: LIFETIME_S, issued: None }
    }
}

fn failed(code: &str) -> ForgeReply {
    ForgeReply::json(200, json!({ "error": code, "error_description": "see the code" }))
}

impl DeviceFlow {
    pub fn answer(&mut self, token: Option<&str>) {
        self.answer = Some(token.map(str::to_owned));
    }

    pub fn set_lifetime(&mut self, seconds: u64) {
        self.lifetime_s = seconds;
    }

    /// Ends the login: its refresh token works no more.
    pub fn revoke(&mut self) {
        self.issued = None;
    }

    pub fn issue_code(&mut self, url: &str) -> ForgeReply {
        (self.answer, self.polls) = (None, 0);
        ForgeReply::json(
            200,
            json!({ "device_code": "device-code-secret", "user_code": "WDJB-MJHT", "expires_in": 900, "interval": 1,
                "verification_uri": format!("{url}/login/device") }),
        )
    }

    /// Answers a poll: once `slow_down`, then `authorization_pending`, until the test answers.
    pub fn poll(&mut self, body: &Value, tokens: &mut BTreeSet<String>) -> ForgeReply {
        if body["grant_type"] == "refresh_token" {
            return self.refresh(body, tokens);
        }
        if body["device_code"] != "device-code-secret" {
            return failed("incorrect_device_code");
        }
        self.polls += 1;
        match self.answer.clone() {
            None if self.polls == 1 => failed("slow_down"),
            None => failed("authorization_pending"),
            Some(None) => failed("access_denied"),
            Some(Some(token)) => self.issue(token, 1, tokens),
        }
    }

    /// A renewal ends the access token and the refresh token before it.
    fn refresh(&mut self, body: &Value, tokens: &mut BTreeSet<String>) -> ForgeReply {
        let presented = body["refresh_token"].as_str().unwrap_or_default();
        match self.issued.take_if(|(_, number)| format!("user-refresh-{number}") == presented) {
            Some((old, number)) => {
                tokens.remove(&old);
                self.issue(format!("renewed-user-token-{number}"), number + 1, tokens)
            }
            None => failed("bad_refresh_token"),
        }
    }

    fn issue(&mut self, token: String, number: u32, tokens: &mut BTreeSet<String>) -> ForgeReply {
        tokens.insert(token.clone());
        self.issued = Some((token.clone(), number));
        ForgeReply::json(
            200,
            json!({ "access_token": token, "token_type": "bearer", "scope": "repo", "expires_in": self.lifetime_s,
                "refresh_token": format!("user-refresh-{number}"), "refresh_token_expires_in": 15_897_600 }),
        )
    }
}
