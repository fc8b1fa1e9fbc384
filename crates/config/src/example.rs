//! Generates `atoll.example.yaml`.

use crate::env;
use crate::key::{KEYS, Key};
use crate::sections::Config;

const HEADER: &str = "\
## Every configuration key with its default. Copy what you change to `atoll.yaml`, without the `#`.
##
## Precedence: flag, environment, file, default. The files are those of `--config` (later ones win), otherwise
## `atoll.yaml` in the working directory, otherwise `atoll/atoll.yaml` in your configuration directory.
## With ATOLL_PROFILE=name, `atoll.name.yaml` beside each file wins over that file.
## Run `atoll config` to see every value and its source.
";

/// The example file. Lines with `##` are comments; the other lines are YAML without their `#`.
pub fn example_file() -> String {
    let defaults = Config { data_dir: "~/.local/share/atoll".into(), ..Config::default() };
    let mut text = HEADER.to_owned();
    let mut open: Vec<&str> = Vec::new();
    for key in KEYS.iter() {
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
        let value = key.sample.map(str::to_owned).or_else(|| (key.show)(&defaults)).unwrap_or_default();
        text.push_str(&format!("##{margin} {}\n##{margin} {}\n", key.help, describe_names(key)));
        text.push_str(&format!("#{margin}{last}: {value}\n"));
        open = path;
    }
    text
}

fn indent(depth: usize) -> String {
    "  ".repeat(depth)
}

/// The other names of a key, and whether its value in the file is a sample.
fn describe_names(key: &Key) -> String {
    let flag = key.flag.map(|flag| format!("--{flag}"));
    let aliases = key.env_aliases.iter().map(|name| (*name).to_owned());
    let mut text =
        flag.into_iter().chain([env::atoll_variable(key.name)]).chain(aliases).collect::<Vec<_>>().join(", ");
    if !key.file_aliases.is_empty() {
        text.push_str(&format!("; in a file also {}", key.file_aliases.join(", ")));
    }
    if key.sample.is_some() {
        text.push_str("; no default, this is a sample");
    }
    format!("[{text}]")
}
