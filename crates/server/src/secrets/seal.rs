//! Sealing and opening: XChaCha20-Poly1305 with a random nonce. What a value may be used for is sealed with it, so
//! that whoever can write to the database can't send a secret elsewhere.

use super::keys::{Error, Key, Ring};
use atoll_core::secret::Exposure;
use atoll_store::secrets::Secret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use secrecy::{ExposeSecret, SecretString};
use serde_json::json;

const NONCE: usize = 24;
/// What this form of sealing is known by; another form would have another.
const FORM: &str = "atoll secret 1";

/// What the value belongs to. It opens with nothing of this changed.
fn bindings(row: &Secret) -> Vec<u8> {
    let (id, project) = (row.id.to_string(), row.project_id.map(|id| id.to_string()));
    let bound = match &row.expose {
        None => json!([FORM, id, project, row.name, row.key_id, row.upstreams, null]),
        Some(Exposure::Variable(name)) => json!([FORM, id, project, row.name, row.key_id, row.upstreams, name]),
        // By one more, so that no variable can be taken for a file.
        Some(Exposure::File(path)) => json!([FORM, id, project, row.name, row.key_id, row.upstreams, null, path]),
    };
    bound.to_string().into_bytes()
}

/// Puts the value into the row, sealed with this key.
pub fn seal(row: &mut Secret, value: &SecretString, key: &Key) -> Result<(), Error> {
    row.key_id.clone_from(&key.id);
    let nonce: [u8; NONCE] = rand::random();
    let payload = Payload { msg: value.expose_secret().as_bytes(), aad: &bindings(row) };
    let cipher = XChaCha20Poly1305::new(key.bytes().into());
    let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| Error::Changed(called(row)))?;
    row.sealed = STANDARD.encode([&nonce[..], &sealed].concat());
    Ok(())
}

pub fn open(row: &Secret, ring: &Ring) -> Result<SecretString, Error> {
    let key = ring.get(&row.key_id).ok_or_else(|| Error::Unknown(called(row), row.key_id.clone()))?;
    let changed = || Error::Changed(called(row));
    let bytes = STANDARD.decode(&row.sealed).map_err(|_| changed())?;
    let (nonce, sealed) = bytes.split_first_chunk::<NONCE>().ok_or_else(changed)?;
    let payload = Payload { msg: sealed, aad: &bindings(row) };
    let cipher = XChaCha20Poly1305::new(key.bytes().into());
    let value = cipher.decrypt(&XNonce::from(*nonce), payload).map_err(|_| changed())?;
    String::from_utf8(value).map(SecretString::from).map_err(|_| changed())
}

fn called(row: &Secret) -> String {
    format!("the secret `{}`", row.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use atoll_core::id::{ProjectId, SecretId};
    use atoll_core::time::Timestamp;
    use proptest::prelude::*;

    fn row() -> Secret {
        let now = Timestamp::from_micros(0);
        Secret {
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

    fn sealed(value: &str) -> (Secret, Ring) {
        let (mut row, ring) = (row(), Ring::of(vec![Key::random(), Key::random()]));
        seal(&mut row, &SecretString::from(value), ring.current().unwrap()).unwrap();
        (row, ring)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_was_sealed_opens(value in any::<String>()) {
            let (row, ring) = sealed(&value);
            let opened = open(&row, &ring).unwrap();
            prop_assert_eq!(opened.expose_secret(), value.as_str());
            prop_assert!(value.len() < 4 || !row.sealed.contains(&value));
        }

        #[test]
        fn a_changed_byte_does_not_open(value in ".{0,40}", at in any::<prop::sample::Index>(), flip in 1u8..) {
            let (mut row, ring) = sealed(&value);
            let mut bytes = STANDARD.decode(&row.sealed).unwrap();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            row.sealed = STANDARD.encode(bytes);
            prop_assert!(matches!(open(&row, &ring), Err(Error::Changed(_))));
        }

        #[test]
        fn any_text_in_its_place_is_refused(text in ".{0,120}") {
            let (mut row, ring) = sealed("value");
            row.sealed = text;
            prop_assert!(open(&row, &ring).is_err());
        }
    }

    #[test]
    fn it_opens_only_where_it_belongs() {
        type Change = (&'static str, fn(&mut Secret));
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
            assert!(matches!(open(&row, &ring), Err(Error::Changed(_))), "{what}");
        }
        // Under another key's name, though both keys are there.
        let (mut row, ring) = sealed("value");
        let other = Key::random();
        row.key_id.clone_from(&other.id);
        assert!(matches!(open(&row, &ring), Err(Error::Unknown(..))));
        assert!(matches!(open(&row, &Ring::of(vec![other])), Err(Error::Changed(_))));
    }

    #[test]
    fn what_it_is_inside_is_bound() {
        let ring = Ring::of(vec![Key::random()]);
        let exposures = [
            None,
            Some(Exposure::Variable("A".into())),
            Some(Exposure::File("A".into())),
            Some(Exposure::File("B".into())),
        ];
        for sealed_as in &exposures {
            let mut row = Secret { expose: sealed_as.clone(), ..row() };
            seal(&mut row, &SecretString::from("value"), ring.current().unwrap()).unwrap();
            for opened_as in &exposures {
                row.expose.clone_from(opened_as);
                assert_eq!(open(&row, &ring).is_ok(), sealed_as == opened_as, "{sealed_as:?} as {opened_as:?}");
            }
        }
    }

    /// Values that an earlier version sealed have to open.
    #[test]
    fn the_form_of_what_is_bound_stays() {
        let mut row = row();
        row.key_id = "k".into();
        let (id, project) = (row.id, row.project_id.unwrap());
        let bound = |row: &Secret| String::from_utf8(bindings(row)).unwrap();
        let begin = format!(r#"["atoll secret 1","{id}","{project}","NAME","k",["api.example.org"]"#);
        assert_eq!(bound(&row), format!("{begin},null]"));
        row.expose = Some(Exposure::Variable("V".into()));
        assert_eq!(bound(&row), format!(r#"{begin},"V"]"#));
        row.expose = Some(Exposure::File("f".into()));
        assert_eq!(bound(&row), format!(r#"{begin},null,"f"]"#));
    }

    #[test]
    fn the_same_value_looks_different_each_time() {
        let ring = Ring::of(vec![Key::random()]);
        let mut row = row();
        let mut seen = std::collections::HashSet::new();
        for _ in 0..100 {
            seal(&mut row, &SecretString::from("value"), ring.current().unwrap()).unwrap();
            assert!(seen.insert(row.sealed.clone()));
        }
    }
}
