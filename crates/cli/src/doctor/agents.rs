//! The agents that are here: which version each is, and whether it can work.

use super::{Check, Report};
use crate::failure::Result;
use serde_json::Value;

const CHECK: &str = "agent";

/// One line for each that was found, of what `atoll agents` says of them.
pub fn tell(listed: &[Value], report: &mut Report<'_>) -> Result {
    let mut checks: Vec<Check> = listed.iter().filter_map(judged).collect();
    if checks.is_empty() {
        let remedy = "`atoll agents install claude` gets one; `--agent demo` needs none.";
        checks.push(Check::warn(CHECK, "none is on this machine", remedy));
    }
    checks.into_iter().try_for_each(|check| report.tell(check))
}

/// Nothing for one that is not here, nor for the one that is built in.
fn judged(item: &Value) -> Option<Check> {
    let (name, origin) = (item["name"].as_str()?, item["origin"].as_str()?);
    if origin == "builtin" {
        return None;
    }
    let version = item["version"].as_str().map_or_else(|| "of an unknown version".to_owned(), str::to_owned);
    let tested = if item["tested"] == true { "tested" } else { "untested" };
    let needs_none = item["keys"].as_array().is_none_or(Vec::is_empty);
    let key = match item["key"] == true {
        _ if needs_none => "no key needed",
        true => "a key is there",
        false => "no key",
    };
    let place = item["path"].as_str().unwrap_or(origin);
    let detail = format!("{name} {version} ({tested}), {key}: {place}");
    let missing: Vec<&str> = item["missing"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Some(if item["usable"] == true {
        Check::ok(CHECK, detail)
    } else {
        let remedy = if missing.is_empty() { "`atoll agents` says more.".to_owned() } else { missing.join("; ") };
        Check::warn(CHECK, detail, remedy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Status;
    use serde_json::json;

    fn item(of: Value) -> Value {
        let mut item = json!({
            "name": "claude", "origin": "path", "path": "/usr/bin/claude", "version": "2.1.0", "tested": true,
            "keys": ["ANTHROPIC_API_KEY"], "key": true, "usable": true, "missing": [],
        });
        for (name, value) in of.as_object().unwrap() {
            item[name] = value.clone();
        }
        item
    }

    #[test]
    fn what_is_here_is_told_with_what_it_lacks() {
        let well = judged(&item(json!({}))).unwrap();
        assert_eq!(
            (well.status, well.detail.as_str()),
            (Status::Ok, "claude 2.1.0 (tested), a key is there: /usr/bin/claude")
        );
        let lacks =
            json!({ "key": false, "usable": false, "missing": ["there is no key"], "tested": false, "version": null });
        let lacks = judged(&item(lacks)).unwrap();
        assert_eq!((lacks.status, lacks.remedy.as_deref()), (Status::Warn, Some("there is no key")));
        assert_eq!(lacks.detail, "claude of an unknown version (untested), no key: /usr/bin/claude");
        let other = judged(&item(json!({ "keys": [], "path": null }))).unwrap();
        assert_eq!(other.detail, "claude 2.1.0 (tested), no key needed: path");
        assert!(judged(&item(json!({ "origin": "builtin" }))).is_none());
        assert!(judged(&item(json!({ "origin": null, "usable": false }))).is_none());
    }
}
