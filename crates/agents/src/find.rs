//! Looks for an agent's program: what the configuration names, else what was installed for Atoll, else `PATH`.

use crate::DIRECTORY;
use crate::known::{Agent, Extent, NODE, Package};
use crate::version::{self, in_order};
use atoll_core::agent::below_place;
use atoll_core::provider::Shown;
use atoll_core::words;
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Where is looked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Places {
    pub data_dir: PathBuf,
    /// What the configuration names.
    pub configured: BTreeMap<Agent, PathBuf>,
    /// The directories of `PATH`, in their order.
    pub path: Vec<PathBuf>,
}

words! {
    "origin of an agent"
    Origin {
        /// By `atoll agents install`.
        Installed = "installed",
        /// The configuration names it.
        Configured = "configured",
        Path = "path",
    }
}

/// An agent's program on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    pub agent: Agent,
    /// Without links.
    pub program: PathBuf,
    pub origin: Origin,
    /// As far as its surroundings say.
    pub version: Option<String>,
    extent: Extent,
    /// The program that runs it, where it is not one itself.
    node: Option<PathBuf>,
    data_dir: PathBuf,
}

/// Why there is none, in a sentence, and what mends it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {remedy}")]
pub struct Missing {
    pub what: String,
    pub remedy: String,
}

impl Missing {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }
}

/// What starts an agent that is a script for node: everything lies beside it.
const NODE_SCRIPT: &str = "#!/bin/sh
here=${0%/*}
exec \"$here/node\" \"$here/../package/bundle/gemini.js\" \"$@\"
";

impl Places {
    pub fn installed(&self, agent: Agent) -> PathBuf {
        self.data_dir.join(DIRECTORY).join(agent.as_str())
    }

    /// The program, or why there is none.
    pub fn find(&self, agent: Agent) -> Result<Found, Missing> {
        let Some(package) = agent.package_here() else { return self.find_named(agent, None) };
        if self.configured.contains_key(&agent) {
            return self.find_named(agent, Some(&package)).and_then(|found| self.with_node(found));
        }
        if let Some(found) = self.newest(agent, &package) {
            return self.with_node(found);
        }
        let named = self.path.iter().map(|directory| directory.join(agent.as_str()));
        let executable = named.filter(|path| is_executable(path));
        // A stand-in whose program is not there does not hide a whole one further on.
        let mut unusable = None;
        for path in executable {
            match self.resolved(agent, &path, Origin::Path, Some(&package)) {
                Ok(found) => return self.with_node(found),
                Err(missing) => unusable = unusable.or(Some(missing)),
            }
        }
        Err(unusable.unwrap_or_else(|| {
            Missing::new(
                format!("{} is not on this machine", agent.title()),
                format!("install it with `atoll agents install {agent}`"),
            )
        }))
    }

    fn find_named(&self, agent: Agent, package: Option<&Package>) -> Result<Found, Missing> {
        let Some(path) = self.configured.get(&agent) else {
            let what = format!("no program is named for {agent}");
            return Err(Missing::new(what, format!("name one with agents.{agent}.path in the configuration")));
        };
        self.resolved(agent, path, Origin::Configured, package)
    }

    /// The newest of those that were installed; the one that was tried goes before all.
    fn newest(&self, agent: Agent, package: &Package) -> Option<Found> {
        let entries = fs::read_dir(self.installed(agent)).into_iter().flatten().flatten();
        let mut versions: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).filter(|name| is_version(name)).collect();
        versions.sort_by(|one, other| {
            let tested = |version: &str| version == package.version;
            tested(one).cmp(&tested(other)).then_with(|| in_order(one, other))
        });
        versions.into_iter().rev().find_map(|version| {
            let program = self.installed(agent).join(&version).join("package").join(package.program);
            let program = program.canonicalize().ok().filter(|path| path.is_file())?;
            Some(Found { version: Some(version), ..self.found(agent, program, Origin::Installed, package.extent) })
        })
    }

    fn found(&self, agent: Agent, program: PathBuf, origin: Origin, extent: Extent) -> Found {
        let version = version::beside(&program);
        Found { agent, program, origin, version, extent, node: None, data_dir: self.data_dir.clone() }
    }

    /// From a name in `PATH` or in the configuration to the program itself: npm puts scripts before many.
    fn resolved(&self, agent: Agent, path: &Path, origin: Origin, package: Option<&Package>) -> Result<Found, Missing> {
        let whose = match origin {
            Origin::Configured => format!("agents.{agent}.path names {}", path.display()),
            Origin::Installed | Origin::Path => format!("{} was found", path.display()),
        };
        let program = path.canonicalize().map_err(|error| {
            Missing::new(
                format!("{whose}, which can't be used ({error})"),
                format!("mend it, or `atoll agents install {agent}`"),
            )
        })?;
        if !program.is_file() {
            return Err(Missing::new(format!("{whose}, which is no file"), "name the program itself"));
        }
        let Some(package) = package else { return Ok(self.found(agent, program, origin, Extent::File)) };
        if let Some(native) = in_modules(&program, package) {
            return Ok(self.found(agent, native, origin, package.extent));
        }
        match package.extent {
            Extent::Node => Err(Missing::new(
                format!("{whose}, but not the package that it belongs to"),
                format!("install it with `atoll agents install {agent}`"),
            )),
            // Installed by other means: as it is.
            Extent::File | Extent::Above => {
                let extent = if program.ends_with(package.program) { package.extent } else { Extent::File };
                if origin == Origin::Path && !is_elf(&program) && is_npm(&program) {
                    return Err(Missing::new(
                        format!("{whose}, a script of npm's whose program is not beside it"),
                        format!("install it with `atoll agents install {agent}`"),
                    ));
                }
                Ok(self.found(agent, program, origin, extent))
            }
        }
    }

    fn with_node(&self, found: Found) -> Result<Found, Missing> {
        match found.extent {
            Extent::File | Extent::Above => Ok(found),
            Extent::Node => {
                let nodes = self.path.iter().map(|directory| directory.join("node"));
                let node = nodes.filter(|path| is_executable(path)).find_map(|path| path.canonicalize().ok());
                match node {
                    Some(node) => Ok(Found { node: Some(node), ..found }),
                    None => Err(Missing::new(
                        format!("{} is here, but not node, which runs it", found.agent.title()),
                        format!("install node {NODE} or later where the server's PATH has it"),
                    )),
                }
            }
        }
    }
}

impl Found {
    /// Node, where the agent is a script for it.
    pub fn node(&self) -> Option<&Path> {
        self.node.as_deref()
    }

    /// Its version: known from where it lies, else it is started once and asked.
    pub fn version(&self) -> Option<String> {
        self.version.clone().or_else(|| version::asked(&self.program))
    }

    /// What a sandbox has to be shown for it to run there.
    pub fn shown(&self) -> Result<Vec<Shown>, Missing> {
        let place = |at: &str| format!("{}/{at}", self.agent);
        let lacks = |what: &str| {
            Missing::new(
                format!("{} lies without {what}", self.program.display()),
                format!("install it with `atoll agents install {}`", self.agent),
            )
        };
        let program = below_place(self.agent.as_str());
        let shown = match self.extent {
            Extent::File => vec![Shown { from: self.program.clone(), at: program }],
            Extent::Above => {
                let above = self.program.parent().and_then(Path::parent).ok_or_else(|| lacks("its directory"))?;
                // It is called the same inside.
                vec![Shown { from: above.to_path_buf(), at: self.agent.as_str().to_owned() }]
            }
            Extent::Node => {
                let package = self.program.parent().and_then(Path::parent).ok_or_else(|| lacks("its package"))?;
                let node = self.node.clone().ok_or_else(|| lacks("node"))?;
                vec![
                    Shown { from: self.script()?, at: program },
                    Shown { from: node, at: place("bin/node") },
                    Shown { from: package.to_path_buf(), at: place("package") },
                ]
            }
        };
        for one in &shown {
            check_rights(&one.from)?;
        }
        Ok(shown)
    }

    /// The script that starts it, written once.
    fn script(&self) -> Result<PathBuf, Missing> {
        let directory = self.data_dir.join(DIRECTORY);
        let path = directory.join(format!("{}.sh", self.agent));
        if fs::read(&path).is_ok_and(|text| text == NODE_SCRIPT.as_bytes()) {
            return path.canonicalize().map_err(|error| unwritten(&path, &error));
        }
        let write = || -> io::Result<PathBuf> {
            fs::create_dir_all(&directory)?;
            let beside = path.with_extension(format!("new-{}", std::process::id()));
            let mut file = fs::File::options().write(true).create(true).truncate(true).mode(0o755).open(&beside)?;
            file.write_all(NODE_SCRIPT.as_bytes())?;
            file.set_permissions(fs::Permissions::from_mode(0o755))?;
            fs::rename(&beside, &path)?;
            path.canonicalize()
        };
        write().map_err(|error| unwritten(&path, &error))
    }
}

fn unwritten(path: &Path, error: &io::Error) -> Missing {
    Missing::new(format!("can't write {}: {error}", path.display()), "let the server's user write there")
}

/// Inside, the agent is a stranger to the file: what others may not do, it can't.
fn check_rights(path: &Path) -> Result<(), Missing> {
    let mode = fs::metadata(path).map(|found| found.permissions().mode()).unwrap_or(0);
    if mode & 0o005 == 0o005 {
        return Ok(());
    }
    Err(Missing::new(
        format!("others than its owner may not run {}", path.display()),
        format!("allow it with `chmod o+rx {}`", path.display()),
    ))
}

/// The program of a package in some `node_modules` around a file of another package.
fn in_modules(file: &Path, package: &Package) -> Option<PathBuf> {
    let places = file.ancestors().skip(1).flat_map(|directory| {
        let own = directory.ends_with("node_modules").then(|| directory.to_path_buf());
        own.into_iter().chain([directory.join("node_modules")])
    });
    let mut programs = places.map(|modules| modules.join(package.module).join(package.program));
    programs.find(|path| path.is_file()).and_then(|path| path.canonicalize().ok())
}

fn is_npm(program: &Path) -> bool {
    program.components().any(|part| part.as_os_str() == "node_modules")
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

pub(crate) fn is_elf(path: &Path) -> bool {
    let mut magic = [0; 4];
    fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && &magic == b"\x7fELF"
}

/// Whether a directory's name can be a version's: what is half installed begins with a dot.
pub(crate) fn is_version(name: &str) -> bool {
    name.starts_with(|first: char| first.is_ascii_digit())
        && name.len() <= 64
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'+'))
}

#[cfg(test)]
#[path = "find_tests.rs"]
mod tests;
