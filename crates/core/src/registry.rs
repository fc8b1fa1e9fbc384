//! Package registries of a company: the settings with which each tool uses them. They contain no credentials.

use crate::string_enum;
use std::collections::BTreeMap;

string_enum! {
    /// An ecosystem whose tools can use another registry.
    "registry"
    RegistryKind { Npm = "npm", Pip = "pip", Cargo = "cargo", Go = "go", Maven = "maven", Apt = "apt" }
}

/// A registry as programs in a sandbox reach it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RegistryAddress {
    pub kind: RegistryKind,
    /// Without a trailing slash.
    pub url: String,
}

/// A file in the agent's home.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolFile {
    /// Relative to the home.
    pub path: &'static str,
    pub text: String,
}

/// Variables and files that make tools use the registries. Cargo and Gradle read theirs from the directory of the
/// download caches once set-up has moved their homes there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolSettings {
    pub variables: BTreeMap<&'static str, String>,
    pub files: Vec<ToolFile>,
}

/// The settings of all tools, each in its own form.
pub fn tool_settings(registries: &[RegistryAddress]) -> ToolSettings {
    let mut all = ToolSettings::default();
    for RegistryAddress { kind, url } in registries {
        match kind {
            RegistryKind::Npm => {
                let with_slash = ["npm_config_registry", "pnpm_config_registry"];
                all.variables.extend(with_slash.map(|name| (name, format!("{url}/"))));
                let plain = ["YARN_NPM_REGISTRY_SERVER", "YARN_REGISTRY", "COREPACK_NPM_REGISTRY"];
                all.variables.extend(plain.map(|name| (name, url.clone())));
                if let Some(host) = plain_http_host(url) {
                    all.variables.insert("YARN_UNSAFE_HTTP_WHITELIST", host.to_owned());
                    // The gateway's address is of no use in a lock file outside of the sandbox.
                    all.variables.insert("npm_config_omit_lockfile_registry_resolved", "true".to_owned());
                }
            }
            RegistryKind::Pip => {
                let names = ["PIP_INDEX_URL", "UV_DEFAULT_INDEX", "PIPENV_PYPI_MIRROR"];
                all.variables.extend(names.map(|name| (name, format!("{url}/"))));
            }
            RegistryKind::Go => drop(all.variables.insert("GOPROXY", url.clone())),
            RegistryKind::Cargo => {
                let paths = [".cargo/config.toml", ".cache/packages/cargo/config.toml"];
                all.files.extend(paths.map(|path| ToolFile { path, text: cargo_config(url) }));
            }
            RegistryKind::Maven => {
                all.files.push(ToolFile { path: ".m2/settings.xml", text: maven_settings(url) });
                let paths = [".gradle/init.d/atoll.gradle", ".cache/packages/gradle/init.d/atoll.gradle"];
                all.files.extend(paths.map(|path| ToolFile { path, text: gradle_script(url) }));
            }
            // Its sources name suites and keys, which only the image knows.
            RegistryKind::Apt => {}
        }
    }
    all
}

/// The host of a URL without TLS.
fn plain_http_host(url: &str) -> Option<&str> {
    url.strip_prefix("http://")?.split(['/', ':']).next()
}

fn cargo_config(url: &str) -> String {
    let scheme = if url.starts_with("sparse+") { "" } else { "sparse+" };
    let replacement = match plain_http_host(url) {
        // If the registry demands a token, cargo needs one of its own, which the gateway replaces.
        Some(_) => format!(
            "[registries.atoll]\nindex = \"{scheme}{url}/\"\n\
             token = \"placeholder\"\ncredential-provider = \"cargo:token\"\n"
        ),
        None => format!("[source.atoll]\nregistry = \"{scheme}{url}/\"\n"),
    };
    format!("[source.crates-io]\nreplace-with = \"atoll\"\n\n{replacement}")
}

fn maven_settings(url: &str) -> String {
    let url = url.replace('&', "&amp;").replace('<', "&lt;");
    format!(
        "<settings>\n  <mirrors>\n    <mirror>\n      <id>atoll</id>\n      <mirrorOf>*</mirrorOf>\n      \
         <url>{url}</url>\n      <blocked>false</blocked>\n    </mirror>\n  </mirrors>\n</settings>\n"
    )
}

fn gradle_script(url: &str) -> String {
    format!(
        "def useMirror = {{ repositories ->\n    \
         repositories.all {{ repository ->\n        \
         if (repository.hasProperty('url') && repository.name != 'atoll') {{ repositories.remove(repository) }}\n    \
         }}\n    \
         repositories.maven {{\n        name = 'atoll'\n        url = '{url}'\n        \
         if (delegate.hasProperty('allowInsecureProtocol')) {{ allowInsecureProtocol = true }}\n    }}\n}}\n\
         settingsEvaluated {{ settings -> useMirror(settings.pluginManagement.repositories) }}\n\
         allprojects {{ project -> useMirror(project.buildscript.repositories); useMirror(project.repositories) }}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(kind: RegistryKind, url: &str) -> ToolSettings {
        tool_settings(&[RegistryAddress { kind, url: url.to_owned() }])
    }

    fn only_file(settings: &ToolSettings) -> &str {
        &settings.files[0].text
    }

    #[test]
    fn variables_name_the_registry() {
        let npm = settings(RegistryKind::Npm, "http://127.0.0.1:7709/registry/npm/npm").variables;
        assert_eq!(npm["npm_config_registry"], "http://127.0.0.1:7709/registry/npm/npm/");
        assert_eq!(npm["pnpm_config_registry"], npm["npm_config_registry"]);
        assert_eq!(npm["YARN_NPM_REGISTRY_SERVER"], "http://127.0.0.1:7709/registry/npm/npm");
        assert_eq!(npm["YARN_UNSAFE_HTTP_WHITELIST"], "127.0.0.1");
        let npm = settings(RegistryKind::Npm, "https://npm.example").variables;
        assert!(!npm.contains_key("YARN_UNSAFE_HTTP_WHITELIST"));
        assert!(!npm.contains_key("npm_config_omit_lockfile_registry_resolved"), "its address is valid everywhere");
        let pip = settings(RegistryKind::Pip, "https://pypi.example/simple").variables;
        assert_eq!(
            (&*pip["PIP_INDEX_URL"], &*pip["UV_DEFAULT_INDEX"]),
            ("https://pypi.example/simple/", "https://pypi.example/simple/")
        );
        let go = settings(RegistryKind::Go, "https://go.example").variables;
        assert_eq!(go, [("GOPROXY", "https://go.example".to_owned())].into());
        assert_eq!(settings(RegistryKind::Apt, "https://apt.example"), ToolSettings::default());
    }

    #[test]
    fn files_have_the_form_of_each_tool() {
        let cargo = settings(RegistryKind::Cargo, "https://crates.example/index");
        assert_eq!(cargo.files[0].path, ".cargo/config.toml");
        assert!(only_file(&cargo).contains("registry = \"sparse+https://crates.example/index/\"\n"));
        let cargo = settings(RegistryKind::Cargo, "http://127.0.0.1:7709/registry/cargo/index");
        let index = "index = \"sparse+http://127.0.0.1:7709/registry/cargo/index/\"\n";
        assert!(only_file(&cargo).contains(index) && only_file(&cargo).contains("cargo:token"), "{cargo:?}");
        let maven = settings(RegistryKind::Maven, "https://maven.example/a?b&c");
        assert!(only_file(&maven).contains("<url>https://maven.example/a?b&amp;c</url>"), "{maven:?}");
        assert_eq!(maven.files[1].path, ".gradle/init.d/atoll.gradle");
        assert!(maven.files[1].text.contains("url = 'https://maven.example/a?b&c'\n"), "{maven:?}");
    }
}
