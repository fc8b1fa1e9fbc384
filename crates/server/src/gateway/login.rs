//! Logins: what an agent's own `login` command leaves in a file, in place of a key. It holds a token that is shown to the
//! upstream, and another by which the first is renewed. Pure: `renew` asks for new ones.

use atoll_core::model::Api;
use atoll_core::time::Timestamp;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Renewed so long before its end, in seconds: what is asked with it may take its time.
const EARLY: i64 = 300;
/// What a token lasts of which nobody says it.
const USUAL: i64 = 3600;

pub struct Login {
    pub access: SecretString,
    pub refresh: Option<SecretString>,
    /// Whose it is, where the upstream wants to hear that too.
    pub account: Option<String>,
    expires: Option<Timestamp>,
}

/// What a stored value is.
pub enum Read {
    Key,
    Login(Login),
    /// It is JSON, and no login that is known here.
    Neither,
}

/// Where the parts stand in somebody's file.
struct Shape {
    /// The object that holds them; none: the whole.
    within: Option<&'static str>,
    access: &'static str,
    refresh: &'static str,
    /// When it ends, and how many of its units are a second; none: the token itself says it.
    expires: Option<(&'static str, i64)>,
    account: Option<&'static str>,
}

const CLAUDE: Shape = Shape {
    within: Some("claudeAiOauth"),
    access: "accessToken",
    refresh: "refreshToken",
    expires: Some(("expiresAt", 1000)),
    account: None,
};
const CODEX: Shape = Shape {
    within: Some("tokens"),
    access: "access_token",
    refresh: "refresh_token",
    expires: None,
    account: Some("account_id"),
};
const fn opencode(provider: &'static str) -> Shape {
    Shape {
        within: Some(provider),
        access: "access",
        refresh: "refresh",
        expires: Some(("expires", 1000)),
        account: Some("accountId"),
    }
}
/// As a server of logins answers, with the time in place of its length.
const PLAIN: Shape = Shape {
    within: None,
    access: "access_token",
    refresh: "refresh_token",
    expires: Some(("expires_at", 1)),
    account: None,
};

const fn shapes(api: Api) -> &'static [Shape] {
    match api {
        Api::Anthropic => const { &[CLAUDE, opencode("anthropic"), PLAIN] },
        Api::OpenAi => const { &[CODEX, opencode("openai"), PLAIN] },
        Api::Gemini => &[PLAIN],
    }
}

/// What a server of logins answers.
#[derive(Deserialize)]
pub struct Grant {
    access_token: Token,
    /// Absent: the one that was shown stays good.
    refresh_token: Option<Token>,
    /// In seconds.
    expires_in: Option<i64>,
    id_token: Option<Token>,
}

#[derive(Deserialize)]
#[serde(from = "String")]
struct Token(SecretString);

impl From<String> for Token {
    fn from(text: String) -> Self {
        Self(text.into())
    }
}

impl Token {
    fn expose(&self) -> &str {
        self.0.expose_secret()
    }
}

pub fn read(api: Api, text: &SecretString) -> Read {
    let text = text.expose_secret();
    if !text.trim_start().starts_with('{') {
        return Read::Key;
    }
    let Ok(Value::Object(whole)) = serde_json::from_str(text) else { return Read::Neither };
    let found = shapes(api).iter().find_map(|shape| shape.read(&whole));
    found.map_or(Read::Neither, Read::Login)
}

/// The same value with what was granted in it, and everything else as it was.
pub fn renewed(api: Api, text: &SecretString, grant: &Grant, now: Timestamp) -> Option<SecretString> {
    let mut whole: Map<String, Value> = serde_json::from_str(text.expose_secret()).ok()?;
    let shape = shapes(api).iter().find(|shape| shape.read(&whole).is_some())?;
    let within = match shape.within {
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
        let ends = grant.expires_in.map(|lasts| seconds.saturating_add(lasts)).or_else(|| end_in(access));
        within.insert(name.to_owned(), ends.unwrap_or(seconds + USUAL).saturating_mul(units).into());
    }
    serde_json::to_string(&whole).ok().map(SecretString::from)
}

impl Shape {
    fn read(&self, whole: &Map<String, Value>) -> Option<Login> {
        let within = match self.within {
            Some(name) => whole.get(name)?.as_object()?,
            None => whole,
        };
        let text = |name: &str| within.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let access = text(self.access)?;
        let told = self.expires.and_then(|(name, units)| Some(within.get(name)?.as_i64()? / units));
        let ends = told.filter(|seconds| *seconds > 0).or_else(|| end_in(access));
        Some(Login {
            access: access.into(),
            refresh: text(self.refresh).map(SecretString::from),
            account: self.account.and_then(text).map(str::to_owned),
            expires: ends.map(|seconds| Timestamp::from_micros(seconds.saturating_mul(1_000_000))),
        })
    }
}

impl Login {
    /// It should be renewed before it is shown again.
    pub fn is_due(&self, now: Timestamp) -> bool {
        self.ends_within(now, EARLY)
    }

    pub fn is_over(&self, now: Timestamp) -> bool {
        self.ends_within(now, 0)
    }

    /// One that says nothing of its end is good until the upstream refuses it.
    fn ends_within(&self, now: Timestamp, seconds: i64) -> bool {
        self.expires.is_some_and(|ends| ends.as_micros() <= now.as_micros().saturating_add(seconds * 1_000_000))
    }
}

/// In seconds, of a token that says so itself (a JWT).
fn end_in(token: &str) -> Option<i64> {
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

    fn login(api: Api, value: &Value) -> Login {
        match read(api, &value.to_string().into()) {
            Read::Login(login) => login,
            Read::Key | Read::Neither => panic!("no login: {value}"),
        }
    }

    fn token(ends: i64) -> String {
        format!("e30.{}.x", URL_SAFE_NO_PAD.encode(json!({ "exp": ends }).to_string()))
    }

    fn files() -> Vec<(Api, Value)> {
        vec![
            (
                Api::Anthropic,
                json!({ "claudeAiOauth": { "accessToken": "old", "refreshToken": "again", "expiresAt": 1_000_100_000_i64, "scopes": ["a"] } }),
            ),
            (
                Api::Anthropic,
                json!({ "anthropic": { "type": "oauth", "access": "old", "refresh": "again", "expires": 1_000_100_000_i64 }, "openai": { "type": "api", "key": "k" } }),
            ),
            (
                Api::OpenAi,
                json!({ "OPENAI_API_KEY": null, "tokens": { "id_token": "who", "access_token": token(1_000_100), "refresh_token": "again", "account_id": "acc" } }),
            ),
            (Api::Gemini, json!({ "access_token": "old", "refresh_token": "again", "expires_at": 1_000_100 })),
        ]
    }

    #[test]
    fn the_files_of_agents_are_read() {
        for (api, file) in files() {
            let login = login(api, &file);
            assert_eq!(login.refresh.as_ref().unwrap().expose_secret(), "again", "{file}");
            assert!(login.is_due(NOW) && !login.is_over(NOW), "{file}");
            assert!(!login.is_due(Timestamp::from_micros(1_000_000_000_000 - 201_000_000)), "{file}");
            assert!(login.is_over(Timestamp::from_micros(1_000_100_000_000)), "{file}");
        }
        assert_eq!(login(Api::OpenAi, &files()[2].1).account.as_deref(), Some("acc"));
        assert!(matches!(read(Api::Anthropic, &"sk-ant-key".into()), Read::Key));
        for other in [json!({}), json!({ "tokens": null }), json!({ "claudeAiOauth": { "accessToken": "" } })] {
            assert!(matches!(read(Api::Anthropic, &other.to_string().into()), Read::Neither), "{other}");
        }
        assert!(matches!(read(Api::OpenAi, &"{not json".into()), Read::Neither));
    }

    #[test]
    fn what_is_granted_takes_its_place_and_nothing_else_changes() {
        for (api, file) in files() {
            let lasts = json!({ "access_token": token(1_009_000), "refresh_token": "next", "expires_in": 9000, "id_token": "them" });
            let grant: Grant = serde_json::from_value(lasts).unwrap();
            let text = renewed(api, &file.to_string().into(), &grant, NOW).unwrap();
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
    fn a_grant_may_leave_the_old_way_to_renew_and_say_nothing_of_its_end() {
        let grant: Grant = serde_json::from_value(json!({ "access_token": "new" })).unwrap();
        let (api, file) = files().remove(0);
        let after = renewed(api, &file.to_string().into(), &grant, NOW).unwrap();
        let login = login(api, &serde_json::from_str(after.expose_secret()).unwrap());
        assert_eq!(login.refresh.as_ref().unwrap().expose_secret(), "again");
        assert!(!login.is_due(NOW) && login.is_due(Timestamp::from_micros(1_000_000_000_000 + 3_600_000_000)));
    }
}
