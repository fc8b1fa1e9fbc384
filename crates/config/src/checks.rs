//! Rules between keys.

use crate::error::Problem;
use crate::load::Values;
use crate::value::Value;
use secrecy::ExposeSecret;

pub(crate) fn check(values: &Values, problems: &mut Vec<Problem>) {
    data_dir(values, problems);
    tls(values, problems);
    listen(values, problems);
    secret_key(values, problems);
    daytona(values, problems);
}

fn conflict(values: &Values, key: &'static str, detail: impl Into<String>) -> Problem {
    Problem::Conflict { key, place: values.source(key), detail: detail.into() }
}

fn is_true(values: &Values, key: &str) -> bool {
    matches!(values.get(key), Some(Value::Bool(true)))
}

fn data_dir(values: &Values, problems: &mut Vec<Problem>) {
    if values.get("data_dir").is_none() && values.are_sound(&["data_dir"]) {
        let remedy = "there is no home directory to put it in: give --data-dir or ATOLL_DATA_DIR";
        problems.push(Problem::Missing { key: "data_dir", remedy });
    }
}

fn tls(values: &Values, problems: &mut Vec<Problem>) {
    if !values.are_sound(&["server.tls_cert", "server.tls_key"]) {
        return;
    }
    match (values.get("server.tls_cert"), values.get("server.tls_key")) {
        (Some(_), None) => problems.push(conflict(values, "server.tls_cert", "needs `server.tls_key` beside it")),
        (None, Some(_)) => problems.push(conflict(values, "server.tls_key", "needs `server.tls_cert` beside it")),
        (Some(_), Some(_)) | (None, None) => {}
    }
}

fn listen(values: &Values, problems: &mut Vec<Problem>) {
    let sound = ["server.listen", "server.insecure_listen", "server.tls_cert", "server.tls_key"];
    let Some(Value::Address(address)) = values.get("server.listen").filter(|_| values.are_sound(&sound)) else {
        return;
    };
    // Half of a certificate is a problem of its own, and shows what was meant.
    let tls = values.get("server.tls_cert").is_some() || values.get("server.tls_key").is_some();
    if !(address.ip().to_canonical().is_loopback() || tls || is_true(values, "server.insecure_listen")) {
        let detail = format!(
            "{address} is reachable from other machines, and without TLS tokens would travel in the clear: \
             give `server.tls_cert` and `server.tls_key`, listen on 127.0.0.1, or allow it with --insecure-listen"
        );
        problems.push(conflict(values, "server.listen", detail));
    }
}

/// Only its form: whether it is the right one shows when it opens something.
fn secret_key(values: &Values, problems: &mut Vec<Problem>) {
    let Some(Value::Secret(key)) = values.get("secret.key") else { return };
    let digits = key.expose_secret().trim_end_matches('=');
    let is_base64 = digits.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/');
    if digits.len() != 43 || !is_base64 {
        let detail =
            "must be 32 bytes in base64, as `head -c 32 /dev/urandom | base64` makes them; it is not repeated here";
        problems.push(conflict(values, "secret.key", detail));
    }
}

fn daytona(values: &Values, problems: &mut Vec<Problem>) {
    let sound = values.are_sound(&["daytona.enabled", "daytona.api_key"]);
    if sound && is_true(values, "daytona.enabled") && values.get("daytona.api_key").is_none() {
        let detail = "asks for Daytona, which needs its key: set `daytona.api_key` or DAYTONA_API_KEY";
        problems.push(conflict(values, "daytona.enabled", detail));
    }
}
