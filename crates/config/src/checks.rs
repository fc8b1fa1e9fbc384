//! Rules between keys.

use crate::error::ConfigProblem;
use crate::format::is_host;
use crate::github_section::protects_tokens;
use crate::load::Provenance;
use crate::sections::Config;
use atoll_core::sandbox::NetworkPolicy;
use secrecy::ExposeSecret;
use std::net::IpAddr;

pub(crate) fn check_config(config: &Config, provenance: &Provenance, problems: &mut Vec<ConfigProblem>) {
    let mut checks = Checks { config, provenance, problems };
    checks.check_data_dir();
    checks.check_tls();
    checks.check_listen();
    checks.check_secret_key();
    checks.check_daytona();
    checks.check_setup();
    checks.check_github();
    checks.check_preview_domain();
}

struct Checks<'a> {
    config: &'a Config,
    provenance: &'a Provenance,
    problems: &'a mut Vec<ConfigProblem>,
}

impl Checks<'_> {
    fn report_conflict(&mut self, key: &'static str, detail: impl Into<String>) {
        let place = self.provenance.source_of(key);
        self.problems.push(ConfigProblem::Conflict { key, place, detail: detail.into() });
    }

    fn check_data_dir(&mut self) {
        if self.config.data_dir.as_os_str().is_empty() && self.provenance.are_valid(&["data_dir"]) {
            let remedy = "there is no home directory for the default; set --data-dir or ATOLL_DATA_DIR";
            self.problems.push(ConfigProblem::MissingValue { key: "data_dir", remedy });
        }
    }

    fn check_tls(&mut self) {
        if !self.provenance.are_valid(&["server.tls_cert", "server.tls_key"]) {
            return;
        }
        match (&self.config.server.tls_cert, &self.config.server.tls_key) {
            (Some(_), None) => self.report_conflict("server.tls_cert", "requires `server.tls_key` too"),
            (None, Some(_)) => self.report_conflict("server.tls_key", "requires `server.tls_cert` too"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }

    fn check_listen(&mut self) {
        let server = &self.config.server;
        let related = ["server.listen", "server.insecure_listen", "server.tls_cert", "server.tls_key"];
        if !self.provenance.are_valid(&related) {
            return;
        }
        // Half of a certificate is reported by `check_tls`, and shows that TLS is intended.
        let has_tls = server.tls_cert.is_some() || server.tls_key.is_some();
        let address = server.listen;
        if !(address.ip().to_canonical().is_loopback() || has_tls || server.insecure_listen) {
            let detail = format!(
                "other machines can reach {address}, and without TLS tokens travel unencrypted: \
                 set `server.tls_cert` and `server.tls_key`, listen on 127.0.0.1, or pass --insecure-listen"
            );
            self.report_conflict("server.listen", detail);
        }
    }

    /// Checks the form only. A wrong key shows when the server opens a secret with it.
    fn check_secret_key(&mut self) {
        let Some(key) = &self.config.secret.key else { return };
        let digits = key.expose_secret().trim_end_matches('=');
        let is_base64 = digits.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+' || b == b'/');
        if digits.len() != 43 || !is_base64 {
            let detail = "expected 32 bytes in base64, as `head -c 32 /dev/urandom | base64` prints them \
                          (the value is a secret and not shown)";
            self.report_conflict("secret.key", detail);
        }
    }

    fn check_setup(&mut self) {
        let setup = &self.config.setup;
        let takes_hosts = matches!(setup.network, NetworkPolicy::Packages | NetworkPolicy::Allow);
        if !setup.allow.is_empty() && !takes_hosts && self.provenance.are_valid(&["setup.network", "setup.allow"]) {
            let detail = format!("only the policies `packages` and `allow` take hosts, not `{}`", setup.network);
            self.report_conflict("setup.allow", detail);
        }
    }

    /// A page below the domain would share cookies with programs in sandboxes.
    fn check_preview_domain(&mut self) {
        let Some(domain) = &self.config.preview.domain else { return };
        let name = domain.split(':').next().unwrap_or_default();
        if !is_host(domain) || !name.contains('.') || name.parse::<IpAddr>().is_ok() {
            let detail = format!("expected a domain with an optional port, found `{domain}`");
            return self.report_conflict("preview.domain", detail);
        }
        let server = &self.config.server;
        let public = server.public_url.as_deref().and_then(|url| url.split_once("://")).map(|(_, rest)| rest);
        let pages = server.hosts.iter().map(String::as_str).chain(public);
        let hosts = pages.map(|page| page.split(['/', ':']).next().unwrap_or_default().to_ascii_lowercase());
        let name = name.to_ascii_lowercase();
        if let Some(page) = hosts.into_iter().find(|host| *host == name || host.ends_with(&format!(".{name}"))) {
            let detail = format!("the page's host {page} is in this domain; use one that only previews have");
            self.report_conflict("preview.domain", detail);
        }
    }

    fn check_daytona(&mut self) {
        let daytona = &self.config.daytona;
        let are_valid = self.provenance.are_valid(&["daytona.enabled", "daytona.api_key"]);
        if are_valid && daytona.enabled && daytona.api_key.is_none() {
            self.report_conflict("daytona.enabled", "requires a key: set `daytona.api_key` or DAYTONA_API_KEY");
        }
    }

    fn check_github(&mut self) {
        let github = &self.config.github;
        for (key, url) in [("github.url", Some(&github.url)), ("github.api_url", github.api_url.as_ref())] {
            if url.is_some_and(|url| !protects_tokens(url)) {
                self.report_conflict(key, "http encrypts no tokens; use https");
            }
        }
        if !self.provenance.are_valid(&["github.app_id", "github.app_key"]) {
            return;
        }
        match (&self.config.github.app_id, &self.config.github.app_key) {
            (Some(_), None) => self.report_conflict("github.app_id", "requires `github.app_key` too"),
            (None, Some(_)) => self.report_conflict("github.app_key", "requires `github.app_id` too"),
            (Some(_), Some(_)) | (None, None) => {}
        }
    }
}
