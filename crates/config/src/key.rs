//! A configuration key, and the macro that declares a section of keys.

use crate::env;
use crate::format::{BaseDirs, Format, Mismatch, RawInput};
use crate::sections::Config;
use secrecy::SecretString;
use std::sync::LazyLock;

/// One configuration key: its names, its help, and access to its typed field.
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) help: &'static str,
    /// Command-line flag that sets the key, without the dashes.
    pub(crate) flag: Option<&'static str>,
    /// Environment variables that set the key besides its own `ATOLL_…` name.
    pub(crate) env_aliases: &'static [&'static str],
    /// Other paths in a file that set the key.
    pub(crate) file_aliases: &'static [&'static str],
    /// Value for the example file, for a key without a default.
    pub(crate) sample: Option<&'static str>,
    /// Warning for a key whose feature does not exist in this version.
    pub(crate) no_effect: Option<&'static str>,
    pub(crate) read: fn(&mut Config, &RawInput<'_>, &BaseDirs<'_>) -> Result<Vec<SecretString>, RejectedValue>,
    pub(crate) reset: fn(&mut Config),
    /// Formats the value; `None` if the key has no value.
    pub(crate) show: fn(&Config) -> Option<String>,
}

/// A value that the key's format rejects.
pub(crate) struct RejectedValue {
    pub(crate) mismatch: Mismatch,
    pub(crate) expected: String,
    /// The value must not appear in a message.
    pub(crate) is_secret: bool,
}

impl Key {
    pub(crate) const fn flag(mut self, flag: &'static str) -> Self {
        self.flag = Some(flag);
        self
    }

    pub(crate) const fn env(mut self, names: &'static [&'static str]) -> Self {
        self.env_aliases = names;
        self
    }

    pub(crate) const fn file_alias(mut self, paths: &'static [&'static str]) -> Self {
        self.file_aliases = paths;
        self
    }

    pub(crate) const fn sample(mut self, value: &'static str) -> Self {
        self.sample = Some(value);
        self
    }

    pub(crate) const fn no_effect(mut self, reason: &'static str) -> Self {
        self.no_effect = Some(reason);
        self
    }

    /// The environment variables that set the key. The last one wins: its own name.
    pub(crate) fn env_names(&self) -> Vec<String> {
        self.env_aliases.iter().map(|name| (*name).to_owned()).chain([env::atoll_variable(self.name)]).collect()
    }
}

/// Every key, in the order of the declarations.
pub(crate) static KEYS: LazyLock<Vec<&'static Key>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    Config::collect_keys(&mut keys);
    keys
});

/// Every key that a command-line flag of `atoll serve` sets, with the flag's name without the dashes.
pub fn flag_names() -> Vec<(&'static str, &'static str)> {
    KEYS.iter().filter_map(|key| Some((key.name, key.flag?))).collect()
}

pub(crate) fn find_key(name: &str) -> Option<&'static Key> {
    KEYS.iter().copied().find(|key| key.name == name)
}

/// A struct field that holds a `T`: a `T` itself, or an `Option<T>` for a key without a default.
pub(crate) trait Field<T> {
    fn get(&self) -> Option<&T>;
    fn set(&mut self, value: T);
}

impl<T> Field<T> for T {
    fn get(&self) -> Option<&T> {
        Some(self)
    }

    fn set(&mut self, value: T) {
        *self = value;
    }
}

impl<T> Field<T> for Option<T> {
    fn get(&self) -> Option<&T> {
        self.as_ref()
    }

    fn set(&mut self, value: T) {
        *self = Some(value);
    }
}

/// Parses `input` into `field`; returns the secrets in it.
pub(crate) fn read_field<F: Format>(
    format: F,
    field: &mut impl Field<F::Value>,
    input: &RawInput<'_>,
    dirs: &BaseDirs<'_>,
) -> Result<Vec<SecretString>, RejectedValue> {
    let value = format.parse_value(input, dirs).map_err(|mismatch| RejectedValue {
        mismatch,
        expected: format.describe_expected(),
        is_secret: F::IS_SECRET,
    })?;
    let secrets = format.secret_parts(&value);
    field.set(value);
    Ok(secrets)
}

pub(crate) fn show_field<F: Format>(format: F, field: &impl Field<F::Value>) -> Option<String> {
    field.get().map(|value| format.show_value(value))
}

/// Declares a section: a struct with one typed field per key, its `Default`, and its entries in the key table.
///
/// A key is `/// help`, then `field: Type = default => format, options;`. The options are the builder methods of [`Key`].
/// `field as "a.b"` gives the key another name than its field's. A key that may be absent has an `Option` type, the
/// default `None` and a `sample`. `section` nests another section; `derived` is a field that no key sets.
macro_rules! section {
    (
        $(#[$meta:meta])*
        $section:ident at $path:tt {
            $(
                #[doc = $help:literal]
                $field:ident $(as $name:literal)?: $type:ty = $default:expr => $format:expr
                    $(, $option:ident($argument:expr))*;
            )*
            $(section $child:ident: $child_type:ident;)*
            $(derived $(#[$derived_meta:meta])* $derived:ident: $derived_type:ty;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone)]
        pub struct $section {
            $(#[doc = $help] pub $field: $type,)*
            $(pub $child: $child_type,)*
            $($(#[$derived_meta])* pub $derived: $derived_type,)*
        }

        impl Default for $section {
            fn default() -> Self {
                Self {
                    $($field: $default,)*
                    $($child: Default::default(),)*
                    $($derived: Default::default(),)*
                }
            }
        }

        impl $section {
            const KEYS: &[$crate::key::Key] = &[
                $($crate::key::Key {
                    name: $crate::key::key_name!($path $field $($name)?),
                    help: $help.trim_ascii(),
                    flag: None,
                    env_aliases: &[],
                    file_aliases: &[],
                    sample: None,
                    no_effect: None,
                    read: |config, input, dirs| {
                        let field = &mut $crate::key::field_at!(config $path $field);
                        $crate::key::read_field($format, field, input, dirs)
                    },
                    reset: |config| {
                        let default = Config::default();
                        $crate::key::field_at!(config $path $field) = $crate::key::field_at!(default $path $field);
                    },
                    show: |config| $crate::key::show_field($format, &$crate::key::field_at!(config $path $field)),
                }$(.$option($argument))*,)*
            ];

            pub(crate) fn collect_keys(keys: &mut Vec<&'static $crate::key::Key>) {
                keys.extend(Self::KEYS);
                $($child_type::collect_keys(keys);)*
            }
        }
    };
}

macro_rules! field_at {
    ($config:ident [$($path:ident).*] $field:ident) => { $config $(.$path)* .$field };
}

macro_rules! key_name {
    ([$($path:ident).*] $field:ident) => { concat!($(stringify!($path), ".",)* stringify!($field)) };
    ([$($path:ident).*] $field:ident $name:literal) => { concat!($(stringify!($path), ".",)* $name) };
}

pub(crate) use {field_at, key_name, section};
