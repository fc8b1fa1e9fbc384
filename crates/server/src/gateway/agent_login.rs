//! Login files of agents: an access token for the upstream, and a refresh token that renews it. Pure; `login_renewal`
//! requests new tokens.

use atoll_core::model::ModelApi;
use atoll_core::time::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Renews a login this long before it expires, since a request may take time.
const RENEWAL_MARGIN_S: i64 = 300;
/// Lifetime of a token without an expiry time.
const DEFAULT_LIFETIME_S: i64 = 3600;

pub struct Login {
    pub access: SecretString,
    pub refresh: Option<SecretString>,
    /// Account id that some upstreams require.
    pub account: Option<String>,
    expires: Option<Timestamp>,
}

/// A parsed credential.
pub enum CredentialText {
    Key,
    Login(Login),
    /// JSON in no known login format.
    UnknownJson,
}

/// The field names of one agent's login file.
struct LoginFormat {
    /// The object with the tokens; `None` for the top level.
    object: Option<&'static str>,
    access: &'static str,
    refresh: &'static str,
    /// Expiry field and its units per second; `None` if the token itself holds it.
    expires: Option<(&'static str, i64)>,
    account: Option<&'static str>,
}

const CLAUDE: LoginFormat = LoginFormat {
    object: Some("claudeAiOauth"),
    access: "accessToken",
    refresh: "refreshToken",
    expires: Some(("expiresAt", 1000)),
    account: None,
};
const CODEX: LoginFormat = LoginFormat {
    object: Some("tokens"),
    access: "access_token",
    refresh: "refresh_token",
    expires: None,
    account: Some("account_id"),
};
const fn opencode_format(provider: &'static str) -> LoginFormat {
    LoginFormat {
        object: Some(provider),
        access: "access",
        refresh: "refresh",
        expires: Some(("expires", 1000)),
        account: Some("accountId"),
    }
}
/// The form of a token endpoint's response, with the expiry time in place of the lifetime.
const OAUTH_RESPONSE: LoginFormat = LoginFormat {
    object: None,
    access: "access_token",
    refresh: "refresh_token",
    expires: Some(("expires_at", 1)),
    account: None,
};

const fn known_formats(api: ModelApi) -> &'static [LoginFormat] {
    match api {
        ModelApi::Anthropic => const { &[CLAUDE, opencode_format("anthropic"), OAUTH_RESPONSE] },
        ModelApi::OpenAi => const { &[CODEX, opencode_format("openai"), OAUTH_RESPONSE] },
        ModelApi::Gemini => &[OAUTH_RESPONSE],
    }
}

/// The response of a token endpoint.
#[derive(Deserialize)]
pub struct TokenGrant {
    access_token: LoginToken,
    /// If absent, the old refresh token stays valid.
    refresh_token: Option<LoginToken>,
    /// In seconds.
    expires_in: Option<i64>,
    id_token: Option<LoginToken>,
}

#[derive(Deserialize)]
#[serde(from = "String")]
struct LoginToken(SecretString);

impl From<String> for LoginToken {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl LoginToken {
    fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

pub fn parse_credential(api: ModelApi, text: &SecretString) -> CredentialText {
    let text = text.expose_secret();
    if !text.trim_start().starts_with('{') {
        return CredentialText::Key;
    }
    let Ok(Value::Object(whole)) = serde_json::from_str(text) else { return CredentialText::UnknownJson };
    let found = known_formats(api).iter().find_map(|shape| shape.read(&whole));
    found.map_or(CredentialText::UnknownJson, CredentialText::Login)
}

/// Puts the granted tokens into a login file and keeps its other fields.
pub fn apply_grant(api: ModelApi, text: &SecretString, grant: &TokenGrant, now: Timestamp) -> Option<SecretString> {
    let mut whole: Map<String, Value> = serde_json::from_str(text.expose_secret()).ok()?;
    let shape = known_formats(api).iter().find(|shape| shape.read(&whole).is_some())?;
    let within = match shape.object {
        Some(name) => whole.get_mut(name)?.as_object_mut()?,
        None => &mut whole,
    };
    let access = grant.access_token.expose();
    within.insert(shape.access.to_owned(), access.into());
    if let Some(refresh) = &grant.refresh_token {
        within.insert(shape.refresh.to_owned(), refresh.expose().into());
    }
    if let Some(identity) = &grant.id_token
        && let Some(known) = within.get_mut("id_token")
    {
        *known = identity.expose().into();
    }
    if let Some((name, units)) = shape.expires {
        let seconds = now.as_micros() / 1_000_000;
        let ends = grant.expires_in.map(|lasts| seconds.saturating_add(lasts)).or_else(|| jwt_expiry(access));
        within.insert(name.to_owned(), ends.unwrap_or(seconds + DEFAULT_LIFETIME_S).saturating_mul(units).into());
    }
    serde_json::to_string(&whole).ok().map(SecretString::from)
}

impl LoginFormat {
    fn read(&self, whole: &Map<String, Value>) -> Option<Login> {
        let within = match self.object {
            Some(name) => whole.get(name)?.as_object()?,
            None => whole,
        };
        let text = |name: &str| within.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let access = text(self.access)?;
        let expiry = self.expires.and_then(|(name, units)| Some(within.get(name)?.as_i64()? / units));
        let ends = expiry.filter(|seconds| *seconds > 0).or_else(|| jwt_expiry(access));
        Some(Login {
            access: access.into(),
            refresh: text(self.refresh).map(SecretString::from),
            account: self.account.and_then(text).map(str::to_owned),
            expires: ends.map(|seconds| Timestamp::from_micros(seconds.saturating_mul(1_000_000))),
        })
    }
}

impl Login {
    /// The login should be renewed before its next use.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.expires_within(now, RENEWAL_MARGIN_S)
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires_within(now, 0)
    }

    /// A login without an expiry time is valid until the upstream rejects it.
    fn expires_within(&self, now: Timestamp, seconds: i64) -> bool {
        self.expires.is_some_and(|ends| ends.as_micros() <= now.as_micros().saturating_add(seconds * 1_000_000))
    }
}

/// The `exp` claim of a JWT, in seconds.
fn jwt_expiry(token: &str) -> Option<i64> {
    #[derive(Deserialize)]
    struct Claims {
        exp: i64,
    }
    let claims = URL_SAFE_NO_PAD.decode(token.split('.').nth(1)?).ok()?;
    serde_json::from_slice::<Claims>(&claims).ok().map(|claims| claims.exp)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000_000);

    fn login(api: ModelApi, value: &Value) -> Login {
        match parse_credential(api, &value.to_string().into()) {
            CredentialText::Login(login) => login,
            CredentialText::Key | CredentialText::UnknownJson => panic!("no login: {value}"),
        }
    }

    fn token(ends: i64) -> String {
        format!("e30.{}.x", URL_SAFE_NO_PAD.encode(json!({ "exp": ends }).to_string()))
    }

    fn files() -> Vec<(ModelApi, Value)> {
        vec![
            (
                ModelApi::Anthropic,
                json!({ "claudeAiOauth": { "accessToken": "old", "refreshToken": "again", "expiresAt": 1_000_100_000_i64, "scopes": ["a"] } }),
            ),
            (
                ModelApi::Anthropic,
                json!({ "anthropic": { "type": "oauth", "access": "old", "refresh": "again", "expires": 1_000_100_000_i64 }, "openai": { "type": "api", "key": "k" } }),
            ),
            (
                ModelApi::OpenAi,
                json!({ "OPENAI_API_KEY": null, "tokens": { "id_token": "who", "access_token": token(1_000_100), "refresh_token": "again", "account_id": "acc" } }),
            ),
            (ModelApi::Gemini, json!({ "access_token": "old", "refresh_token": "again", "expires_at": 1_000_100 })),
        ]
    }

    #[test]
    fn parses_the_login_files_of_agents() {
        for (api, file) in files() {
            let login = login(api, &file);
            assert_eq!(login.refresh.as_ref().unwrap().expose_secret(), "again", "{file}");
            assert!(login.is_due(NOW) && !login.is_expired(NOW), "{file}");
            assert!(!login.is_due(Timestamp::from_micros(1_000_000_000_000 - 201_000_000)), "{file}");
            assert!(login.is_expired(Timestamp::from_micros(1_000_100_000_000)), "{file}");
        }
        assert_eq!(login(ModelApi::OpenAi, &files()[2].1).account.as_deref(), Some("acc"));
        assert!(matches!(parse_credential(ModelApi::Anthropic, &"sk-ant-key".into()), CredentialText::Key));
        for other in [json!({}), json!({ "tokens": null }), json!({ "claudeAiOauth": { "accessToken": "" } })] {
            assert!(
                matches!(parse_credential(ModelApi::Anthropic, &other.to_string().into()), CredentialText::UnknownJson),
                "{other}"
            );
        }
        assert!(matches!(parse_credential(ModelApi::OpenAi, &"{not json".into()), CredentialText::UnknownJson));
    }

    #[test]
    fn a_grant_replaces_only_its_own_fields() {
        for (api, file) in files() {
            let lasts = json!({ "access_token": token(1_009_000), "refresh_token": "next", "expires_in": 9000, "id_token": "them" });
            let grant: TokenGrant = serde_json::from_value(lasts).unwrap();
            let text = apply_grant(api, &file.to_string().into(), &grant, NOW).unwrap();
            let after: Value = serde_json::from_str(text.expose_secret()).unwrap();
            let login = login(api, &after);
            assert_eq!(login.access.expose_secret(), token(1_009_000));
            assert_eq!(login.refresh.unwrap().expose_secret(), "next");
            assert_eq!(login.expires, Some(Timestamp::from_micros(1_009_000_000_000)), "{after}");
            let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
            assert_eq!(keys(&file), keys(&after));
            assert_eq!(file["openai"], after["openai"]);
            assert_eq!(file["claudeAiOauth"]["scopes"], after["claudeAiOauth"]["scopes"]);
        }
    }

    #[test]
    fn a_grant_may_omit_the_refresh_token_and_the_lifetime() {
        let grant: TokenGrant = serde_json::from_value(json!({ "access_token": "new" })).unwrap();
        let (api, file) = files().remove(0);
        let after = apply_grant(api, &file.to_string().into(), &grant, NOW).unwrap();
        let login = login(api, &serde_json::from_str(after.expose_secret()).unwrap());
        assert_eq!(login.refresh.as_ref().unwrap().expose_secret(), "again");
        assert!(!login.is_due(NOW) && login.is_due(Timestamp::from_micros(1_000_000_000_000 + 3_600_000_000)));
    }
}
