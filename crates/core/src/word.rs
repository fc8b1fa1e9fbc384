//! One macro for every closed set of words that is stored, sent and shown.

/// A string that is not one of a closed set of words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is not a {what}; allowed: {allowed}")]
pub struct UnknownWord {
    pub what: &'static str,
    pub given: String,
    pub allowed: String,
}

/// Declares an enum whose variants each have exactly one written form, used in the database, in
/// JSON, in the OpenAPI document and on the command line alike.
///
/// `$word` is a `tt`, not a `literal`: the latter reaches a derive in an invisible group that not
/// every derive looks into.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $what:literal $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:tt),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum $name {
            $($(#[$vmeta])* #[serde(rename = $word)] $variant,)+
        }

        impl $name {
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::word::UnknownWord;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::word::UnknownWord {
                        what: $what,
                        given: s.chars().take(64).collect(),
                        allowed: [$($word),+].join(", "),
                    }),
                }
            }
        }
    };
}
