//! The tokens of a login, as they are sealed.

use atoll_forges::github::device_login::UserGrant;
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

#[derive(Debug)]
pub(super) struct StoredGrant {
    pub access_token: SecretString,
    pub refresh_token: Option<SecretString>,
    /// In seconds; known only when it is granted.
    pub expires_in: Option<u64>,
}

impl From<UserGrant> for StoredGrant {
    fn from(grant: UserGrant) -> Self {
        let UserGrant { access_token, expires_in, refresh_token } = grant;
        Self { access_token, refresh_token, expires_in }
    }
}

impl StoredGrant {
    pub fn parse(text: &SecretString) -> Option<Self> {
        let value: Value = serde_json::from_str(text.expose_secret()).ok()?;
        let field = |name: &str| value[name].as_str().map(SecretString::from);
        Some(Self { access_token: field("access_token")?, refresh_token: field("refresh_token"), expires_in: None })
    }

    pub fn to_text(&self) -> SecretString {
        let refresh_token = self.refresh_token.as_ref().map(|token| token.expose_secret());
        json!({ "access_token": self.access_token.expose_secret(), "refresh_token": refresh_token }).to_string().into()
    }

    /// The texts for the redactor.
    pub fn tokens(&self) -> Vec<SecretString> {
        std::iter::once(&self.access_token).chain(&self.refresh_token).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grant_survives_its_text() {
        for refresh_token in [None, Some(SecretString::from("r"))] {
            let grant = StoredGrant { access_token: "a".into(), refresh_token, expires_in: Some(5) };
            let read = StoredGrant::parse(&grant.to_text()).unwrap();
            let texts = |grant: &StoredGrant| -> Vec<String> {
                grant.tokens().iter().map(|token| token.expose_secret().to_owned()).collect()
            };
            assert_eq!(texts(&read), texts(&grant));
        }
        assert!(StoredGrant::parse(&"{}".into()).is_none());
    }
}
