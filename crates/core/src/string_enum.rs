//! A macro for closed sets of strings that are stored, sent and displayed.

/// Error for a string outside of a closed set of strings.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{value}` is not a valid {type_label}; allowed: {allowed}")]
pub struct UnknownValue {
    pub type_label: &'static str,
    pub value: String,
    pub allowed: String,
}

/// Declares an enum in which each variant has exactly one text form, used in the database, in JSON, in the OpenAPI
/// document and on the command line.
///
/// `$word` is a `tt`, not a `literal`: a literal reaches a derive in an invisible group, which some derives don't
/// handle.
#[macro_export]
macro_rules! string_enum {
    ($(#[$meta:meta])* $type_label:literal $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:tt),+ $(,)? }) => {
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
            type Err = $crate::string_enum::UnknownValue;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match s {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::string_enum::UnknownValue {
                        type_label: $type_label,
                        value: s.chars().take(64).collect(),
                        allowed: [$($word),+].join(", "),
                    }),
                }
            }
        }
    };
}
