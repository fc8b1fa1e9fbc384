//! Typed identifiers: a UUIDv7, formatted as a short prefixed string (`sbx_01k…`).
//!
//! The formatted ids sort by creation time and are opaque to users.

use std::fmt;
use uuid::Uuid;

const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
const ENCODED: usize = 26;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid {what} id: it begins with `{prefix}_` and has {ENCODED} characters after that")]
pub struct BadId {
    pub what: &'static str,
    pub prefix: &'static str,
}

fn encode(value: u128, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = [0u8; ENCODED];
    let mut rest = value;
    for slot in text.iter_mut().rev() {
        *slot = ALPHABET[(rest & 31) as usize];
        rest >>= 5;
    }
    f.write_str(std::str::from_utf8(&text).map_err(|_| fmt::Error)?)
}

fn decode(text: &str) -> Option<u128> {
    if text.len() != ENCODED || text.as_bytes()[0] > b'7' {
        return None; // the first character carries only three bits
    }
    text.bytes().try_fold(0u128, |value, byte| {
        let digit = ALPHABET.iter().position(|known| *known == byte)?;
        Some(value << 5 | digit as u128)
    })
}

macro_rules! typed_id {
    ($(#[$meta:meta])* $name:ident, $prefix:literal, $what:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            #[allow(clippy::new_without_default, reason = "each call returns a different id")]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            pub const fn from_uuid(uuid: Uuid) -> Self {
                Self(uuid)
            }

            pub const fn uuid(self) -> Uuid {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(concat!($prefix, "_"))?;
                encode(self.0.as_u128(), f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl std::str::FromStr for $name {
            type Err = BadId;

            fn from_str(text: &str) -> Result<Self, BadId> {
                text.strip_prefix(concat!($prefix, "_"))
                    .and_then(decode)
                    .map(|value| Self(Uuid::from_u128(value)))
                    .ok_or(BadId { what: $what, prefix: $prefix })
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some(concat!("^", $prefix, "_[0-7][0-9a-hjkmnp-tv-z]{25}$")))
                    .build()
                    .into()
            }
        }

        #[cfg(feature = "openapi")]
        impl utoipa::ToSchema for $name {
            fn name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
        }
    };
}

typed_id!(SandboxId, "sbx", "sandbox");
typed_id!(SessionId, "ses", "session");
typed_id!(ProjectId, "prj", "project");
typed_id!(MessageId, "msg", "message");
typed_id!(UserId, "usr", "user");
typed_id!(TokenId, "tok", "token");
typed_id!(LeaseId, "lea", "lease");
typed_id!(JobId, "job", "job");
typed_id!(SecretId, "sec", "secret");
typed_id!(TicketId, "tkt", "ticket");
typed_id!(TaskId, "tsk", "task");
typed_id!(SignInId, "sin", "sign-in");
typed_id!(PreviewId, "prv", "preview");
typed_id!(InterventionId, "itv", "intervention");

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_id_survives_its_written_form(value: u128) {
            let id = SandboxId::from_uuid(Uuid::from_u128(value));
            prop_assert_eq!(id.to_string().parse::<SandboxId>(), Ok(id));
        }

        #[test]
        fn accepts_only_the_canonical_form(text in ".{0,40}") {
            if let Ok(id) = text.parse::<SandboxId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }

        #[test]
        fn written_order_is_time_order(a: u128, b: u128) {
            let (x, y) = (SandboxId::from_uuid(Uuid::from_u128(a)), SandboxId::from_uuid(Uuid::from_u128(b)));
            prop_assert_eq!(x.to_string().cmp(&y.to_string()), x.cmp(&y));
        }
    }

    #[test]
    fn rejects_another_kind_of_id() {
        assert!(SessionId::new().to_string().parse::<SandboxId>().is_err());
    }
}
