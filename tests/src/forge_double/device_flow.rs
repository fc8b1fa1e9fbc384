//! The device flow of logins.

use super::ForgeReply;
use serde_json::{Value, json};

#[derive(Debug, Default)]
pub(crate) struct DeviceFlow {
    answer: Option<Option<String>>,
    polls: u32,
}

impl DeviceFlow {
    pub fn answer(&mut self, token: Option<&str>) {
        self.answer = Some(token.map(str::to_owned));
    }

    pub fn issue_code(&self, url: &str) -> ForgeReply {
        ForgeReply::json(
            200,
            json!({ "device_code": "device-code-secret", "user_code": "WDJB-MJHT", "expires_in": 900, "interval": 1,
                "verification_uri": format!("{url}/login/device") }),
        )
    }

    /// Answers a poll: once `slow_down`, then `authorization_pending`, until the test answers.
    pub fn poll(&mut self, body: &Value) -> ForgeReply {
        let failed = |code: &str| ForgeReply::json(200, json!({ "error": code, "error_description": "see the code" }));
        if body["grant_type"] == "refresh_token" {
            return match body["refresh_token"].as_str() {
                Some("refresh-1") => ForgeReply::json(
                    200,
                    json!({ "access_token": "renewed-user-token",
                    "token_type": "bearer", "scope": "", "expires_in": 28800, "refresh_token": "refresh-2" }),
                ),
                _ => failed("bad_refresh_token"),
            };
        }
        if body["device_code"] != "device-code-secret" {
            return failed("incorrect_device_code");
        }
        self.polls += 1;
        match &self.answer {
            None if self.polls == 1 => failed("slow_down"),
            None => failed("authorization_pending"),
            Some(None) => failed("access_denied"),
            Some(Some(token)) => ForgeReply::json(
                200,
                json!({ "access_token": token, "token_type": "bearer",
                "scope": "repo", "expires_in": 28800, "refresh_token": "refresh-1" }),
            ),
        }
    }
}
