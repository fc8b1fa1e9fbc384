//! The key of a set-up layer: equal keys mean that set-up would install the same.

use super::{RepositoryFiles, SetupError, SetupPlan};
use crate::sandbox::Network;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Changes whenever the layout of a layer or the computation of the key changes.
const FORMAT: &str = "1";
/// More files appear as one part.
const MAX_FILE_PARTS: usize = 40;
const PART_DIGEST_CHARS: usize = 16;

/// Everything that decides what set-up leaves. Secrets, the commit and the branch are left out on purpose.
#[derive(Debug, Clone, Copy)]
pub struct CacheKeyInputs<'a> {
    /// The root file system: an image with its version, or the host's.
    pub root: &'a str,
    /// Versions of the tools, by program.
    pub tools: &'a BTreeMap<String, String>,
    pub plan: &'a SetupPlan,
    pub files: &'a RepositoryFiles,
    /// Variables of the request and the project, without secrets. The plan's own are added.
    pub env: &'a BTreeMap<String, String>,
    /// URLs of the registries, by ecosystem.
    pub registries: &'a BTreeMap<String, String>,
    pub network: &'a Network,
    /// Settings that change which files the checkout has.
    pub checkout: Option<&'a str>,
}

/// The key of a set-up layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheKey {
    /// SHA-256 in hex.
    pub digest: String,
    /// The parts, to show which one differs between two keys.
    pub parts: Vec<CacheKeyPart>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct CacheKeyPart {
    /// Such as `root`, `commands` or `file package-lock.json`.
    pub name: String,
    /// The start of the part's SHA-256 in hex.
    pub digest: String,
}

impl CacheKey {
    pub fn compute(inputs: &CacheKeyInputs<'_>) -> Result<Self, SetupError> {
        let CacheKeyInputs { root, tools, plan, files, env, registries, network, checkout } = *inputs;
        let commands: Vec<_> = plan.steps.iter().map(|step| (&step.directory, step.command.to_argv())).collect();
        let variables: BTreeMap<_, _> = plan.env.iter().chain(env).collect();
        let mut parts = vec![
            ("format".to_owned(), hash_bytes(FORMAT.as_bytes())),
            ("root".to_owned(), hash_bytes(root.as_bytes())),
            ("tools".to_owned(), hash_json(&tools)),
            ("commands".to_owned(), hash_json(&commands)),
            ("variables".to_owned(), hash_json(&variables)),
            ("registries".to_owned(), hash_json(&registries)),
            ("network".to_owned(), hash_json(&network)),
        ];
        parts.extend(checkout.map(|settings| ("checkout".to_owned(), hash_bytes(settings.as_bytes()))));
        for path in &plan.key_files {
            let too_large = || SetupError::FileTooLarge { path: path.clone() };
            parts.push((format!("file {path}"), hash_bytes(files.content(path).ok_or_else(too_large)?)));
        }
        let mut whole = Sha256::new();
        for (name, digest) in &parts {
            whole.update((name.len() as u64).to_be_bytes());
            whole.update(name.as_bytes());
            whole.update(digest);
        }
        Ok(Self { digest: to_hex(&whole.finalize()), parts: summarize_parts(&parts) })
    }
}

/// Bounds the list: an event contains it.
fn summarize_parts(parts: &[(String, [u8; 32])]) -> Vec<CacheKeyPart> {
    let short = |digest: &[u8]| to_hex(digest).chars().take(PART_DIGEST_CHARS).collect();
    let most = parts.iter().filter(|(name, _)| !name.starts_with("file ")).count() + MAX_FILE_PARTS;
    let shown = parts.iter().take(most);
    let mut summary: Vec<_> =
        shown.map(|(name, digest)| CacheKeyPart { name: name.clone(), digest: short(digest) }).collect();
    if let Some(rest) = parts.get(most..).filter(|rest| !rest.is_empty()) {
        let digests: Vec<u8> = rest.iter().flat_map(|(_, digest)| *digest).collect();
        summary.push(CacheKeyPart { name: format!("{} more files", rest.len()), digest: short(&hash_bytes(&digests)) });
    }
    summary
}

fn hash_bytes(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Hashes a value whose JSON form always exists: maps with text keys, lists and texts.
fn hash_json(value: &impl Serialize) -> [u8; 32] {
    hash_bytes(&serde_json::to_vec(value).unwrap_or_default())
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
