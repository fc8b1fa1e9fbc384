//! Seals secrets with XChaCha20-Poly1305 and a random nonce. The associated data includes a secret's hosts and exposure,
//! so that write access to the database cannot redirect a secret.

use super::seal_keys::{Error, KeyRing, SealKey};
use atoll_core::secret::Exposure;
use atoll_store::forge_logins::ForgeLoginRow;
use atoll_store::secrets::SecretRow;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

const NONCE_BYTES: usize = 24;
/// Version of the format, part of the associated data.
const SEAL_VERSION: &str = "atoll secret 1";
const FORGE_LOGIN_SEAL_VERSION: &str = "atoll forge login 1";

/// A row with a sealed value.
pub trait SealedRow {
    /// Everything that the value is bound to. It opens only if none of it changed.
    fn associated_data(&self) -> Vec<u8>;
    /// The row in an error message.
    fn describe(&self) -> String;
    /// The sealed text and the id of its key.
    fn sealed(&self) -> (&str, &str);
    fn sealed_mut(&mut self) -> (&mut String, &mut String);
}

impl SealedRow for SecretRow {
    fn associated_data(&self) -> Vec<u8> {
        let (id, project) = (self.id.to_string(), self.project_id.map(|id| id.to_string()));
        let bound = match &self.expose {
            None => json!([SEAL_VERSION, id, project, self.name, self.key_id, self.upstreams, null]),
            Some(Exposure::Variable(name)) => {
                json!([SEAL_VERSION, id, project, self.name, self.key_id, self.upstreams, name])
            }
            // One more element, so that a variable never equals a file.
            Some(Exposure::File(path)) => {
                json!([SEAL_VERSION, id, project, self.name, self.key_id, self.upstreams, null, path])
            }
        };
        bound.to_string().into_bytes()
    }

    fn describe(&self) -> String {
        format!("the secret `{}`", self.name)
    }

    fn sealed(&self) -> (&str, &str) {
        (&self.sealed, &self.key_id)
    }

    fn sealed_mut(&mut self) -> (&mut String, &mut String) {
        (&mut self.sealed, &mut self.key_id)
    }
}

impl SealedRow for ForgeLoginRow {
    fn associated_data(&self) -> Vec<u8> {
        let user = self.user_id.to_string();
        json!([FORGE_LOGIN_SEAL_VERSION, user, self.forge, self.host, self.key_id]).to_string().into_bytes()
    }

    fn describe(&self) -> String {
        format!("the login at {}", self.host)
    }

    fn sealed(&self) -> (&str, &str) {
        (&self.sealed, &self.key_id)
    }

    fn sealed_mut(&mut self) -> (&mut String, &mut String) {
        (&mut self.sealed, &mut self.key_id)
    }
}

/// Seals a value with this key and puts it into the row.
pub fn seal_secret(row: &mut impl SealedRow, value: &SecretString, key: &SealKey) -> Result<(), Error> {
    row.sealed_mut().1.clone_from(&key.id);
    let nonce: [u8; NONCE_BYTES] = rand::random();
    let payload = Payload { msg: value.expose_secret().as_bytes(), aad: &row.associated_data() };
    let cipher = XChaCha20Poly1305::new(key.bytes().into());
    let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| Error::Changed(row.describe()))?;
    *row.sealed_mut().0 = STANDARD.encode([&nonce[..], &sealed].concat());
    Ok(())
}

pub fn open_secret(row: &impl SealedRow, ring: &KeyRing) -> Result<SecretString, Error> {
    let (text, key_id) = row.sealed();
    let key = ring.get(key_id).ok_or_else(|| Error::UnknownKey(row.describe(), key_id.to_owned()))?;
    let changed = || Error::Changed(row.describe());
    let bytes = STANDARD.decode(text).map_err(|_| changed())?;
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE_BYTES>().ok_or_else(changed)?;
    let payload = Payload { msg: sealed, aad: &row.associated_data() };
    let cipher = XChaCha20Poly1305::new(key.bytes().into());
    let value = cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| changed())?;
    String::from_utf8(value).map(SecretString::from).map_err(|_| changed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::forge::ForgeKind;
    use atoll_core::id::{ProjectId, SecretId, UserId};
    use atoll_core::time::Timestamp;
    use proptest::prelude::*;

    fn row() -> SecretRow {
        let now = Timestamp::from_micros(0);
        SecretRow {
            id: SecretId::new(),
            project_id: Some(ProjectId::new()),
            name: "NAME".into(),
            sealed: String::new(),
            key_id: String::new(),
            upstreams: vec!["api.example.org".into()],
            expose: None,
            created_by: None,
            created_at: now,
            updated_at: now,
        }
    }

    fn sealed(value: &str) -> (SecretRow, KeyRing) {
        let (mut row, ring) = (row(), KeyRing::new(vec![SealKey::generate(), SealKey::generate()]));
        seal_secret(&mut row, &SecretString::from(value), ring.current().unwrap()).unwrap();
        (row, ring)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn opens_what_it_seals(value in any::<String>()) {
            let (row, ring) = sealed(&value);
            let opened = open_secret(&row, &ring).unwrap();
            prop_assert_eq!(opened.expose_secret(), value.as_str());
            prop_assert!(value.len() < 4 || !row.sealed.contains(&value));
        }

        #[test]
        fn rejects_a_changed_byte(value in ".{0,40}", at in any::<prop::sample::Index>(), flip in 1u8..) {
            let (mut row, ring) = sealed(&value);
            let mut bytes = STANDARD.decode(&row.sealed).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            row.sealed = STANDARD.encode(bytes);
            prop_assert!(matches!(open_secret(&row, &ring), Err(Error::Changed(_))));
        }

        #[test]
        fn rejects_any_other_text(text in ".{0,120}") {
            let (mut row, ring) = sealed("value");
            row.sealed = text;
            prop_assert!(open_secret(&row, &ring).is_err());
        }
    }

    #[test]
    fn opens_only_in_its_own_row() {
        type Change = (&'static str, fn(&mut SecretRow));
        let changes: [Change; 7] = [
            ("id", |row| row.id = SecretId::new()),
            ("project", |row| row.project_id = Some(ProjectId::new())),
            ("deployment", |row| row.project_id = None),
            ("name", |row| row.name = "OTHER".into()),
            ("upstreams", |row| row.upstreams.push("evil.example.org".into())),
            ("expose", |row| row.expose = Some(Exposure::Variable("NAME".into()))),
            ("file", |row| row.expose = Some(Exposure::File("NAME".into()))),
        ];
        for (what, change) in changes {
            let (mut row, ring) = sealed("value");
            change(&mut row);
            assert!(matches!(open_secret(&row, &ring), Err(Error::Changed(_))), "{what}");
        }
        // Another key id, although both keys are known.
        let (mut row, ring) = sealed("value");
        let other = SealKey::generate();
        row.key_id.clone_from(&other.id);
        assert!(matches!(open_secret(&row, &ring), Err(Error::UnknownKey(..))));
        assert!(matches!(open_secret(&row, &KeyRing::new(vec![other])), Err(Error::Changed(_))));
    }

    #[test]
    fn a_forge_login_opens_only_for_its_user_and_host() {
        let (now, ring) = (Timestamp::from_micros(0), KeyRing::new(vec![SealKey::generate()]));
        let mut row = ForgeLoginRow {
            user_id: UserId::new(),
            forge: ForgeKind::GitHub,
            host: "github.com".into(),
            account: None,
            sealed: String::new(),
            key_id: String::new(),
            expires_at: None,
            created_at: now,
            updated_at: now,
        };
        seal_secret(&mut row, &SecretString::from("value"), ring.current().unwrap()).unwrap();
        assert_eq!(open_secret(&row, &ring).unwrap().expose_secret(), "value");
        let other_user = ForgeLoginRow { user_id: UserId::new(), ..row.clone() };
        let other_host = ForgeLoginRow { host: "evil.example.org".into(), ..row };
        for changed in [other_user, other_host] {
            assert!(matches!(open_secret(&changed, &ring), Err(Error::Changed(_))));
        }
    }

    #[test]
    fn the_exposure_is_authenticated() {
        let ring = KeyRing::new(vec![SealKey::generate()]);
        let exposures = [
            None,
            Some(Exposure::Variable("A".into())),
            Some(Exposure::File("A".into())),
            Some(Exposure::File("B".into())),
        ];
        for sealed_as in &exposures {
            let mut row = SecretRow { expose: sealed_as.clone(), ..row() };
            seal_secret(&mut row, &SecretString::from("value"), ring.current().unwrap()).unwrap();
            for opened_as in &exposures {
                row.expose.clone_from(opened_as);
                assert_eq!(open_secret(&row, &ring).is_ok(), sealed_as == opened_as, "{sealed_as:?} as {opened_as:?}");
            }
        }
    }

    /// Values that an earlier version sealed must still open.
    #[test]
    fn the_associated_data_is_stable() {
        let mut row = row();
        row.key_id = "k".into();
        let (id, project) = (row.id, row.project_id.unwrap());
        let bound = |row: &SecretRow| String::from_utf8(row.associated_data()).unwrap();
        let begin = format!(r#"["atoll secret 1","{id}","{project}","NAME","k",["api.example.org"]"#);
        assert_eq!(bound(&row), format!("{begin},null]"));
        row.expose = Some(Exposure::Variable("V".into()));
        assert_eq!(bound(&row), format!(r#"{begin},"V"]"#));
        row.expose = Some(Exposure::File("f".into()));
        assert_eq!(bound(&row), format!(r#"{begin},null,"f"]"#));
    }

    #[test]
    fn sealing_twice_gives_different_texts() {
        let ring = KeyRing::new(vec![SealKey::generate()]);
        let mut row = row();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            seal_secret(&mut row, &SecretString::from("value"), ring.current().unwrap()).unwrap();
            assert!(seen.insert(row.sealed.clone()));
        }
    }
}
