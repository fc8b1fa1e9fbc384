//! Finds an agent's program: at the configured path, else among the installed versions, else in `PATH`.

use crate::AGENTS_DIR;
use crate::known_agents::{Agent, MIN_NODE_VERSION, MountExtent, Package};
use crate::version::{self, compare_versions};
use atoll_core::agent::relative_program_path;
use atoll_core::provider::ReadOnlyMount;
use atoll_core::string_enum;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The locations to search: `configured`, then `data_dir`, then `path`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentLocations {
    pub data_dir: PathBuf,
    /// Paths from the configuration.
    pub configured: BTreeMap<Agent, PathBuf>,
    /// Programs of the agents that the configuration names, by agent.
    pub acp_programs: BTreeMap<String, PathBuf>,
    /// The directories of `PATH`, in order.
    pub path: Vec<PathBuf>,
}

string_enum! {
    "origin of an agent"
    Origin {
        /// Installed by `atoll agents install`.
        Installed = "installed",
        /// Named in the configuration.
        Configured = "configured",
        Path = "path",
    }
}

/// An agent's program on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstalledAgent {
    pub agent: Agent,
    /// The agent's name: one of the configuration, or that of `agent`.
    pub name: String,
    /// Canonical path, without symbolic links.
    pub program: PathBuf,
    pub origin: Origin,
    /// Version from the surrounding files, if they contain one.
    pub version: Option<String>,
    extent: MountExtent,
    /// Path of node, if the agent is a node script.
    node: Option<PathBuf>,
    data_dir: PathBuf,
}

/// Explains why an agent is unavailable and how to fix it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{problem}: {remedy}")]
pub struct MissingAgent {
    pub problem: String,
    pub remedy: String,
}

impl MissingAgent {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { problem: what.into(), remedy: remedy.into() }
    }
}

/// Start script for an agent that runs on node. Node and the package are siblings of the script.
const NODE_SCRIPT: &str = "#!/bin/sh
here=${0%/*}
exec \"$here/node\" \"$here/../package/bundle/gemini.js\" \"$@\"
";

impl AgentLocations {
    pub fn install_dir(&self, agent: Agent) -> PathBuf {
        self.data_dir.join(AGENTS_DIR).join(agent.as_str())
    }

    /// Finds the agent's program, or explains why there is none.
    pub fn find_agent(&self, agent: Agent) -> Result<InstalledAgent, MissingAgent> {
        let Some(package) = agent.package_for_host() else { return self.find_configured(agent, None) };
        if self.configured.contains_key(&agent) {
            return self.find_configured(agent, Some(&package)).and_then(|found| self.require_node(found));
        }
        if let Some(found) = self.find_preferred_installed(agent, &package) {
            return self.require_node(found);
        }
        let named = self.path.iter().map(|directory| directory.join(agent.as_str()));
        let executable = named.filter(|path| is_executable(path));
        // A broken npm script in `PATH` does not hide a working program in a later directory.
        let mut unusable = None;
        for path in executable {
            match self.resolve_program(agent, &path, Origin::Path, Some(&package)) {
                Ok(found) => return self.require_node(found),
                Err(missing) => unusable = unusable.or(Some(missing)),
            }
        }
        Err(unusable.unwrap_or_else(|| {
            MissingAgent::new(
                format!("{} is not installed on this machine", agent.display_name()),
                format!("install it with `atoll agents install {agent}`"),
            )
        }))
    }

    fn find_configured(&self, agent: Agent, package: Option<&Package>) -> Result<InstalledAgent, MissingAgent> {
        let Some(path) = self.configured.get(&agent) else {
            let what = format!("no program is named for {agent}");
            return Err(MissingAgent::new(what, format!("set agents.{agent}.path in the configuration")));
        };
        self.resolve_program(agent, path, Origin::Configured, package)
    }

    /// Finds the program of an agent that the configuration names; `None` if it names no such agent.
    pub fn find_acp_agent(&self, name: &str) -> Option<Result<InstalledAgent, MissingAgent>> {
        let path = self.acp_programs.get(name)?;
        let missing = |reason: String| {
            let problem = format!("acp_agents.{name}.program names {}, {reason}", path.display());
            MissingAgent::new(problem, "name the program file")
        };
        let program = match path.canonicalize() {
            Ok(program) if program.is_file() => program,
            Ok(_) => return Some(Err(missing("which is not a file".to_owned()))),
            Err(error) => return Some(Err(missing(format!("which cannot be used ({error})")))),
        };
        let found = self.describe_program(Agent::Acp, program, Origin::Configured, MountExtent::File);
        Some(Ok(InstalledAgent { name: name.to_owned(), ..found }))
    }

    /// Finds the installed version to use: the tested one, else the newest.
    fn find_preferred_installed(&self, agent: Agent, package: &Package) -> Option<InstalledAgent> {
        let entries = fs::read_dir(self.install_dir(agent)).into_iter().flatten().flatten();
        let mut versions: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_version(name)).collect();
        versions.sort_by(|one, other| {
            let tested = |version: &str| version == package.version;
            tested(one).cmp(&tested(other)).then_with(|| compare_versions(one, other))
        });
        versions.into_iter().rev().find_map(|version| {
            let program = self.install_dir(agent).join(&version).join("package").join(package.program);
            let program = program.canonicalize().ok().filter(|path| path.is_file())?;
            Some(InstalledAgent {
                version: Some(version),
                ..self.describe_program(agent, program, Origin::Installed, package.extent)
            })
        })
    }

    fn describe_program(&self, agent: Agent, program: PathBuf, origin: Origin, extent: MountExtent) -> InstalledAgent {
        let version = version::read_package_version(&program);
        let (name, data_dir) = (agent.as_str().to_owned(), self.data_dir.clone());
        InstalledAgent { agent, name, program, origin, version, extent, node: None, data_dir }
    }

    /// Resolves a path from `PATH` or the configuration to the program behind an npm script.
    fn resolve_program(
        &self,
        agent: Agent,
        path: &Path,
        origin: Origin,
        package: Option<&Package>,
    ) -> Result<InstalledAgent, MissingAgent> {
        let subject = match origin {
            Origin::Configured => format!("agents.{agent}.path names {}", path.display()),
            Origin::Installed | Origin::Path => format!("{} was found", path.display()),
        };
        let program = path.canonicalize().map_err(|error| {
            MissingAgent::new(
                format!("{subject}, which cannot be used ({error})"),
                format!("fix it, or run `atoll agents install {agent}`"),
            )
        })?;
        if !program.is_file() {
            return Err(MissingAgent::new(format!("{subject}, which is not a file"), "name the program file"));
        }
        let Some(package) = package else {
            return Ok(self.describe_program(agent, program, origin, MountExtent::File));
        };
        if let Some(native) = find_in_node_modules(&program, package) {
            return Ok(self.describe_program(agent, native, origin, package.extent));
        }
        match package.extent {
            MountExtent::Node => Err(MissingAgent::new(
                format!("{subject}, but not its package"),
                format!("install it with `atoll agents install {agent}`"),
            )),
            // Installed by other means: use it unchanged.
            MountExtent::File | MountExtent::ParentDir => {
                let extent = if program.ends_with(package.program) { package.extent } else { MountExtent::File };
                if origin == Origin::Path && !is_elf(&program) && is_npm_package(&program) {
                    return Err(MissingAgent::new(
                        format!("{subject}, an npm script without its program"),
                        format!("install it with `atoll agents install {agent}`"),
                    ));
                }
                Ok(self.describe_program(agent, program, origin, extent))
            }
        }
    }

    fn require_node(&self, found: InstalledAgent) -> Result<InstalledAgent, MissingAgent> {
        match found.extent {
            MountExtent::File | MountExtent::ParentDir => Ok(found),
            MountExtent::Node => {
                let nodes = self.path.iter().map(|directory| directory.join("node"));
                let node = nodes.filter(|path| is_executable(path)).find_map(|path| path.canonicalize().ok());
                match node {
                    Some(node) => Ok(InstalledAgent { node: Some(node), ..found }),
                    None => Err(MissingAgent::new(
                        format!("{} is installed, but node, which it needs, is not", found.agent.display_name()),
                        format!("install node {MIN_NODE_VERSION} or later in the server's PATH"),
                    )),
                }
            }
        }
    }
}

impl InstalledAgent {
    /// The path of node, if the agent is a node script.
    pub fn node_path(&self) -> Option<&Path> {
        self.node.as_deref()
    }

    /// Reads the version from the surrounding files, or runs the program once to get it.
    pub fn detect_version(&self) -> Option<String> {
        self.version.clone().or_else(|| version::query_version_cached(&self.program))
    }

    /// Lists the mounts that a sandbox needs to run the agent.
    pub fn list_mounts(&self) -> Result<Vec<ReadOnlyMount>, MissingAgent> {
        let agent_path = |at: &str| format!("{}/{at}", self.agent);
        let incomplete_error = |what: &str| {
            MissingAgent::new(
                format!("{} is incomplete: {what} is missing", self.program.display()),
                format!("install it with `atoll agents install {}`", self.agent),
            )
        };
        let program = relative_program_path(&self.name);
        let mounts = match self.extent {
            MountExtent::File => vec![ReadOnlyMount { host_path: self.program.clone(), relative_path: program }],
            MountExtent::ParentDir => {
                let above =
                    self.program.parent().and_then(Path::parent).ok_or_else(|| incomplete_error("its directory"))?;
                // It has the same name inside.
                vec![ReadOnlyMount { host_path: above.to_path_buf(), relative_path: self.agent.as_str().to_owned() }]
            }
            MountExtent::Node => {
                let package =
                    self.program.parent().and_then(Path::parent).ok_or_else(|| incomplete_error("its package"))?;
                let node = self.node.clone().ok_or_else(|| incomplete_error("node"))?;
                vec![
                    ReadOnlyMount { host_path: self.write_start_script()?, relative_path: program },
                    ReadOnlyMount { host_path: node, relative_path: agent_path("bin/node") },
                    ReadOnlyMount { host_path: package.to_path_buf(), relative_path: agent_path("package") },
                ]
            }
        };
        for mount in &mounts {
            check_permissions(&mount.host_path)?;
        }
        Ok(mounts)
    }

    /// Writes the start script if it does not exist.
    fn write_start_script(&self) -> Result<PathBuf, MissingAgent> {
        let directory = self.data_dir.join(AGENTS_DIR);
        let path = directory.join(format!("{}.sh", self.agent));
        if fs::read(&path).is_ok_and(|text| text == NODE_SCRIPT.as_bytes()) {
            return path.canonicalize().map_err(|error| cannot_write(&path, &error));
        }
        let write = || -> io::Result<PathBuf> {
            fs::create_dir_all(&directory)?;
            let temporary = path.with_extension(format!("new-{}", std::process::id()));
            let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o755).open(&temporary)?;
            file.write_all(NODE_SCRIPT.as_bytes())?;
            file.set_permissions(fs::Permissions::from_mode(0o755))?;
            fs::rename(&temporary, &path)?;
            path.canonicalize()
        };
        write().map_err(|error| cannot_write(&path, &error))
    }
}

fn cannot_write(path: &Path, error: &io::Error) -> MissingAgent {
    MissingAgent::new(format!("cannot write {}: {error}", path.display()), "let the server's user write there")
}

/// Checks that all users may read and execute the file: inside the sandbox, the agent does not own it.
fn check_permissions(path: &Path) -> Result<(), MissingAgent> {
    let mode = fs::metadata(path).map(|found| found.permissions().mode()).unwrap_or(0);
    if mode & 0o005 == 0o005 {
        return Ok(());
    }
    Err(MissingAgent::new(
        format!("not all users may read and execute {}", path.display()),
        format!("allow it with `chmod o+rx {}`", path.display()),
    ))
}

/// Finds a package's program in the `node_modules` directories around a file of another package.
fn find_in_node_modules(file: &Path, package: &Package) -> Option<PathBuf> {
    let places = file.ancestors().skip(1).flat_map(|directory| {
        let own = directory.ends_with("node_modules").then(|| directory.to_path_buf());
        own.into_iter().chain([directory.join("node_modules")])
    });
    let mut programs = places.map(|modules| modules.join(package.module).join(package.program));
    programs.find(|path| path.is_file()).and_then(|path| path.canonicalize().ok())
}

fn is_npm_package(program: &Path) -> bool {
    program.components().any(|part| part.as_os_str() == "node_modules")
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

pub(crate) fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"\x7fELF"
}

/// Returns true if a directory name is a version. Names of unfinished installations start with a dot.
pub(crate) fn is_version(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_digit())
        && name.len() <= 64
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'))
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
