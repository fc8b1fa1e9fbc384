//! The content of an archive: a root directory, or layers with a manifest.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Take};
use std::path::{Component, Path};

use flate2::read::MultiGzDecoder;
use rustix::fs::{Mode, OFlags};
use serde::Deserialize;
use serde_json::Value;

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const XZ: [u8; 4] = [0xfd, 0x37, 0x7a, 0x58];
const BZIP2: [u8; 3] = *b"BZh";

/// A longer file is not a manifest.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// No real root has more files or is larger.
const MAX_ENTRIES: usize = 5_000_000;
const MAX_ARCHIVE_BYTES: u64 = 256 << 30;

pub(super) struct Archive {
    file: File,
    entries: BTreeMap<String, ArchiveEntry>,
}

/// A named entry of the archive.
enum ArchiveEntry {
    At {
        position: u64,
        size: u64,
    },
    /// An alias: `docker save` links identical layers.
    Link(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum ArchiveContent {
    Root,
    /// Lowest first.
    Layers(Vec<String>),
}

#[derive(Deserialize)]
struct DockerManifest {
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

fn archive_error(error: impl std::fmt::Display) -> String {
    format!("it is not a readable tar archive: {error}")
}

impl Archive {
    pub fn open(file: File) -> Result<Self, String> {
        let mut file = make_seekable(file)?;
        let mut entries = BTreeMap::new();
        let mut tar = tar::Archive::new(&mut file);
        for entry in tar.entries_with_seek().map_err(archive_error)? {
            let entry = entry.map_err(archive_error)?;
            let Some(name) = normalize_name(&String::from_utf8_lossy(&entry.path_bytes())) else { continue };
            let kind = entry.header().entry_type();
            let entry_kind = match entry.link_name_bytes() {
                Some(target) if kind.is_symlink() || kind.is_hard_link() => {
                    let target = String::from_utf8_lossy(&target).into_owned();
                    // A symbolic link is relative to its directory.
                    let above = Path::new(&name).parent().filter(|_| kind.is_symlink());
                    let whole = above.map_or_else(|| target.clone(), |above| format!("{}/{target}", above.display()));
                    match normalize_inside(&whole) {
                        Some(target) => ArchiveEntry::Link(target),
                        None => continue,
                    }
                }
                _ => ArchiveEntry::At { position: entry.raw_file_position(), size: entry.size() },
            };
            entries.insert(name, entry_kind);
            if entries.len() > MAX_ENTRIES {
                return Err(format!("it has more than {MAX_ENTRIES} files"));
            }
        }
        if entries.is_empty() {
            return Err("it is empty".to_owned());
        }
        Ok(Self { file, entries })
    }

    /// Reads the manifest. A newer `docker save` writes both kinds, which agree.
    pub fn read_content(&self) -> Result<ArchiveContent, String> {
        if let Some(saved) = self.read_json("manifest.json").and_then(|value| serde_json::from_value(value).ok()) {
            let saved: Vec<DockerManifest> = saved;
            return match <[DockerManifest; 1]>::try_from(saved) {
                Ok([DockerManifest { layers }]) if !layers.is_empty() => Ok(ArchiveContent::Layers(layers)),
                Ok(_) => Err("its manifest.json names no layer".to_owned()),
                Err(saved) => Err(format!("it has {} images: save a single one", saved.len())),
            };
        }
        match self.read_json("index.json").filter(|_| self.entries.contains_key("oci-layout")) {
            Some(index) => self.resolve_index(&index, 4).map(ArchiveContent::Layers),
            None => Ok(ArchiveContent::Root),
        }
    }

    fn resolve_index(&self, index: &Value, depth: u32) -> Result<Vec<String>, String> {
        let list = index.get("manifests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let chosen = match list {
            [one] => one,
            [] => return Err("its index.json names no image".to_owned()),
            several => several
                .iter()
                .find(|one| one.pointer("/platform/architecture").and_then(Value::as_str) == Some(oci_architecture()))
                .ok_or_else(|| format!("it has {} images, but none for {}", several.len(), oci_architecture()))?,
        };
        let manifest = blob_path(chosen).and_then(|path| self.read_json(&path));
        let manifest = manifest.ok_or("a manifest named in its index.json is missing")?;
        if manifest.get("manifests").is_some() {
            return match depth.checked_sub(1) {
                Some(depth) => self.resolve_index(&manifest, depth),
                None => Err("its image indexes are nested too deeply".to_owned()),
            };
        }
        let layers = manifest.get("layers").and_then(Value::as_array).ok_or("its manifest names no layers")?;
        let layers: Option<Vec<String>> = layers.iter().map(blob_path).collect();
        layers.ok_or_else(|| "its manifest names a layer without a digest".to_owned())
    }

    fn read_json(&self, name: &str) -> Option<Value> {
        let (position, size) = self.find_entry(name)?;
        if size > MAX_LIST_BYTES {
            return None;
        }
        let mut text = Vec::new();
        self.reader_at(position, size).ok()?.read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn find_entry(&self, name: &str) -> Option<(u64, u64)> {
        let mut name = normalize_name(name)?;
        for _ in 0..8 {
            match self.entries.get(&name)? {
                ArchiveEntry::At { position, size } => return Some((*position, *size)),
                ArchiveEntry::Link(target) => name.clone_from(target),
            }
        }
        None
    }

    fn reader_at(&self, position: u64, size: u64) -> io::Result<Take<File>> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(position))?;
        Ok(file.take(size))
    }

    pub fn open_layer(&self, name: &str) -> Result<Box<dyn Read>, String> {
        let (position, size) = self.find_entry(name).ok_or_else(|| format!("its layer {name} is missing"))?;
        let open = || self.reader_at(position, size).map_err(archive_error);
        let mut magic = Vec::new();
        open()?.take(4).read_to_end(&mut magic).map_err(archive_error)?;
        check_compression(&magic)?;
        let raw = io::BufReader::with_capacity(1 << 17, open()?);
        Ok(if magic.starts_with(&GZIP) { Box::new(MultiGzDecoder::new(raw)) } else { Box::new(raw) })
    }

    /// Opens the whole archive.
    pub fn open_whole(&self) -> Result<Box<dyn Read>, String> {
        let mut file = self.file.try_clone().map_err(archive_error)?;
        file.rewind().map_err(archive_error)?;
        Ok(Box::new(io::BufReader::with_capacity(1 << 17, file)))
    }
}

fn oci_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// The path of a descriptor's blob in the archive.
fn blob_path(descriptor: &Value) -> Option<String> {
    let (kind, digest) = descriptor.get("digest")?.as_str()?.split_once(':')?;
    let fits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (fits(kind) && fits(digest)).then(|| format!("blobs/{kind}/{digest}"))
}

/// Normalizes an entry's name; `None` if it is empty.
fn normalize_name(name: &str) -> Option<String> {
    normalize_inside(name).filter(|name| !name.is_empty())
}

/// Resolves `..` in a name; `None` if it leaves the archive.
fn normalize_inside(name: &str) -> Option<String> {
    let mut parts: Vec<&str> = Vec::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => parts.push(part.to_str()?),
            Component::ParentDir => drop(parts.pop()?),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Some(parts.join("/"))
}

fn check_compression(magic: &[u8]) -> Result<(), String> {
    let form = if magic.starts_with(&ZSTD) {
        "zstd"
    } else if magic.starts_with(&XZ) {
        "xz"
    } else if magic.starts_with(&BZIP2) {
        "bzip2"
    } else {
        return Ok(());
    };
    Err(format!("it is compressed with {form}, which is not supported: use gzip or no compression"))
}

/// Returns the archive as an uncompressed, seekable file; copies it to an unlinked file if needed.
fn make_seekable(mut file: File) -> Result<File, String> {
    let failed = |error: io::Error| format!("failed to read it: {error}");
    let is_file = file.rewind().is_ok();
    let mut magic = Vec::new();
    (&mut file).take(4).read_to_end(&mut magic).map_err(failed)?;
    check_compression(&magic)?;
    let is_gzip = magic.starts_with(&GZIP);
    if is_file && !is_gzip {
        file.rewind().map_err(failed)?;
        return Ok(file);
    }
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let copy = rustix::fs::open(".", flags, Mode::RUSR | Mode::WUSR).map_err(io::Error::from).map_err(failed)?;
    let mut copy = File::from(copy);
    let whole = io::Cursor::new(magic).chain(file);
    let mut whole: Box<dyn Read> = if is_gzip { Box::new(MultiGzDecoder::new(whole)) } else { Box::new(whole) };
    let copied = io::copy(&mut (&mut whole).take(MAX_ARCHIVE_BYTES), &mut copy).map_err(failed)?;
    if copied == MAX_ARCHIVE_BYTES {
        return Err("it is larger than 256 GiB".to_owned());
    }
    copy.rewind().map_err(failed)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalized_names_stay_inside() {
        assert_eq!(normalize_name("./a//b/"), Some("a/b".into()));
        assert_eq!(normalize_name("/a"), Some("a".into()));
        assert_eq!(normalize_inside("x/../y/layer.tar"), Some("y/layer.tar".into()));
        assert_eq!(normalize_inside("../y"), None);
        assert_eq!(normalize_name("./"), None);
    }

    #[test]
    fn only_digests_name_blobs() {
        let of = |digest: &str| blob_path(&serde_json::json!({ "digest": digest }));
        assert_eq!(of("sha256:ab12"), Some("blobs/sha256/ab12".into()));
        for bad in ["sha256:../x", "sha256:", "x", "a/b:c"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn names_the_unsupported_compression() {
        assert!(check_compression(&ZSTD).unwrap_err().contains("zstd"));
        assert!(check_compression(b"abcd").is_ok());
    }
}
