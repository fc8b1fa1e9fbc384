//! The text of `atoll.example.yaml`.

use crate::env;
use crate::keys::{Default, KEYS, Key};

const HEAD: &str = "\
## Every setting of Atoll, with its default. Copy what you change to `atoll.yaml`, without the `#`.
##
## A flag wins over the environment, the environment over a file, a file over the default. Files are those of
## `--config` (later ones win), else `atoll.yaml` here, else `atoll/atoll.yaml` in your configuration directory.
## With ATOLL_PROFILE=name, `atoll.name.yaml` beside each file wins over it.
## `atoll config` shows what is in force and where it came from.
";

/// Every key with its default and its sentence. Lines with `##` are prose; without their `#` the others are YAML.
pub fn example() -> String {
    let mut text = HEAD.to_owned();
    let mut open: Vec<&str> = Vec::new();
    for key in KEYS {
        let mut path: Vec<&str> = key.name.split('.').collect();
        let last = path.pop().unwrap_or_default();
        if path.is_empty() || path.first() != open.first() {
            text.push('\n');
        }
        let shared = path.iter().zip(&open).take_while(|(a, b)| a == b).count();
        for (depth, section) in path.iter().enumerate().skip(shared) {
            text.push_str(&format!("#{}{section}:\n", indent(depth)));
        }
        let margin = indent(path.len());
        text.push_str(&format!("##{margin} {}\n##{margin} {}\n", key.doc, origin(key)));
        text.push_str(&format!("#{margin}{last}: {}\n", written(key)));
        open = path;
    }
    text
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth)
}

/// Where else the key can be set, and whether what follows is its default.
fn origin(key: &Key) -> String {
    let flag = key.flag.map(|flag| format!("--{flag}"));
    let aliases = key.aliases.iter().map(|name| (*name).to_owned());
    let mut text = flag.into_iter().chain([env::own_name(key.name)]).chain(aliases).collect::<Vec<_>>().join(", ");
    if !key.file_aliases.is_empty() {
        text.push_str(&format!("; in a file also {}", key.file_aliases.join(", ")));
    }
    if key.default == Default::None {
        text.push_str("; no default, this is a sample");
    }
    format!("[{text}]")
}

fn written(key: &Key) -> String {
    match key.default {
        Default::None => key.sample.unwrap_or_default().to_owned(),
        Default::Is("") => "[]".to_owned(),
        Default::Is(text) => text.to_owned(),
        Default::InDataHome => "~/.local/share/atoll".to_owned(),
    }
}
