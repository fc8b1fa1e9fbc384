//! Settings that disable every configured filter, because a filter is a program.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

/// Lists the settings of all filters.
pub const LIST_ARGUMENTS: [&str; 5] = ["config", "--null", "--name-only", "--get-regexp", r"^filter\."];

/// Environment variables that disable the listed filters in any later command.
pub fn disabling_env(listed: &[u8]) -> Vec<(OsString, OsString)> {
    let mut drivers: Vec<&[u8]> = listed
        .split(|byte| *byte == 0)
        .filter_map(|key| Some(&key[..key.iter().rposition(|byte| *byte == b'.')?]))
        .filter(|driver| driver.len() > b"filter.".len())
        .collect();
    drivers.sort_unstable();
    drivers.dedup();
    let mut settings: Vec<(OsString, OsString)> = Vec::new();
    let mut count = 0;
    for driver in drivers {
        for (key, value) in [("clean", ""), ("smudge", ""), ("process", ""), ("required", "false")] {
            let key = [driver, b".", key.as_bytes()].concat();
            settings.push((format!("GIT_CONFIG_KEY_{count}").into(), OsString::from_vec(key)));
            settings.push((format!("GIT_CONFIG_VALUE_{count}").into(), value.into()));
            count += 1;
        }
    }
    settings.push(("GIT_CONFIG_COUNT".into(), count.to_string().into()));
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn disables_each_filter_once() {
        assert_eq!(disabling_env(b""), [("GIT_CONFIG_COUNT".into(), "0".into())]);
        let settings = disabling_env(b"filter.lfs.clean\0filter.a.b.smudge\0filter.lfs.required\0filter.clean\0");
        let keys: Vec<_> = settings.iter().step_by(2).map(|(_, key)| key.to_str().unwrap()).collect();
        assert_eq!(
            keys[..5],
            ["filter.a.b.clean", "filter.a.b.smudge", "filter.a.b.process", "filter.a.b.required", "filter.lfs.clean",]
        );
        assert_eq!(settings[7], ("GIT_CONFIG_VALUE_3".into(), "false".into()));
        assert_eq!(settings.last(), Some(&("GIT_CONFIG_COUNT".into(), "8".into())));
    }
}
