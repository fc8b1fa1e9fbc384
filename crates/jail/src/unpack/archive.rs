//! What an archive holds, told by its content: a root, or layers with a list of them.

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

/// Lists of layers are short; one that isn't is none.
const LONGEST_LIST: u64 = 4 << 20;
/// So many files no root has, and so large is none.
const MOST_ENTRIES: usize = 5_000_000;
const LARGEST: u64 = 256 << 30;

pub(super) struct Archive {
    file: File,
    entries: BTreeMap<String, Held>,
}

/// Something in the archive by its name.
enum Held {
    At {
        position: u64,
        size: u64,
    },
    /// Another name of something: `docker save` names layers that are the same so.
    Link(String),
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Content {
    Root,
    /// The lowest first.
    Layers(Vec<String>),
}

#[derive(Deserialize)]
struct Saved {
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

fn unreadable(error: impl std::fmt::Display) -> String {
    format!("it can't be read as a tar archive: {error}")
}

impl Archive {
    pub fn open(file: File) -> Result<Self, String> {
        let mut file = seekable(file)?;
        let mut entries = BTreeMap::new();
        let mut tar = tar::Archive::new(&mut file);
        for entry in tar.entries_with_seek().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            let Some(name) = plain(&String::from_utf8_lossy(&entry.path_bytes())) else { continue };
            let kind = entry.header().entry_type();
            let held = match entry.link_name_bytes() {
                Some(target) if kind.is_symlink() || kind.is_hard_link() => {
                    let target = String::from_utf8_lossy(&target).into_owned();
                    // A symbolic link is relative to where it stands.
                    let above = Path::new(&name).parent().filter(|_| kind.is_symlink());
                    let whole = above.map_or_else(|| target.clone(), |above| format!("{}/{target}", above.display()));
                    match within(&whole) {
                        Some(target) => Held::Link(target),
                        None => continue,
                    }
                }
                _ => Held::At { position: entry.raw_file_position(), size: entry.size() },
            };
            entries.insert(name, held);
            if entries.len() > MOST_ENTRIES {
                return Err(format!("it holds more than {MOST_ENTRIES} files"));
            }
        }
        if entries.is_empty() {
            return Err("there is nothing in it".to_owned());
        }
        Ok(Self { file, entries })
    }

    /// A newer `docker save` writes both lists; they say the same.
    pub fn layers(&self) -> Result<Content, String> {
        if let Some(saved) = self.json("manifest.json").and_then(|value| serde_json::from_value(value).ok()) {
            let saved: Vec<Saved> = saved;
            return match <[Saved; 1]>::try_from(saved) {
                Ok([Saved { layers }]) if !layers.is_empty() => Ok(Content::Layers(layers)),
                Ok(_) => Err("its manifest.json names no layer".to_owned()),
                Err(saved) => Err(format!("it holds {} images: save one alone", saved.len())),
            };
        }
        match self.json("index.json").filter(|_| self.entries.contains_key("oci-layout")) {
            Some(index) => self.layers_of(&index, 4).map(Content::Layers),
            None => Ok(Content::Root),
        }
    }

    fn layers_of(&self, index: &Value, depth: u32) -> Result<Vec<String>, String> {
        let list = index.get("manifests").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let chosen = match list {
            [one] => one,
            [] => return Err("its index.json names no image".to_owned()),
            several => several
                .iter()
                .find(|one| one.pointer("/platform/architecture").and_then(Value::as_str) == Some(architecture()))
                .ok_or_else(|| format!("it holds {} images, and none for {}", several.len(), architecture()))?,
        };
        let manifest = blob(chosen).and_then(|path| self.json(&path));
        let manifest = manifest.ok_or("a manifest that its index.json names is missing")?;
        if manifest.get("manifests").is_some() {
            return match depth.checked_sub(1) {
                Some(depth) => self.layers_of(&manifest, depth),
                None => Err("its lists of images have no end".to_owned()),
            };
        }
        let layers = manifest.get("layers").and_then(Value::as_array).ok_or("its manifest names no layers")?;
        let layers: Option<Vec<String>> = layers.iter().map(blob).collect();
        layers.ok_or_else(|| "its manifest names a layer by no digest".to_owned())
    }

    fn json(&self, name: &str) -> Option<Value> {
        let (position, size) = self.find(name)?;
        if size > LONGEST_LIST {
            return None;
        }
        let mut text = Vec::new();
        self.at(position, size).ok()?.read_to_end(&mut text).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn find(&self, name: &str) -> Option<(u64, u64)> {
        let mut name = plain(name)?;
        for _ in 0..8 {
            match self.entries.get(&name)? {
                Held::At { position, size } => return Some((*position, *size)),
                Held::Link(target) => name.clone_from(target),
            }
        }
        None
    }

    fn at(&self, position: u64, size: u64) -> io::Result<Take<File>> {
        let mut file = self.file.try_clone()?;
        file.seek(SeekFrom::Start(position))?;
        Ok(file.take(size))
    }

    pub fn layer(&self, name: &str) -> Result<Box<dyn Read>, String> {
        let (position, size) = self.find(name).ok_or_else(|| format!("its layer {name} is missing"))?;
        let open = || self.at(position, size).map_err(unreadable);
        let mut magic = Vec::new();
        open()?.take(4).read_to_end(&mut magic).map_err(unreadable)?;
        compressed(&magic)?;
        let raw = io::BufReader::with_capacity(1 << 17, open()?);
        Ok(if magic.starts_with(&GZIP) { Box::new(MultiGzDecoder::new(raw)) } else { Box::new(raw) })
    }

    /// The whole archive.
    pub fn reader(&self) -> Result<Box<dyn Read>, String> {
        let mut file = self.file.try_clone().map_err(unreadable)?;
        file.rewind().map_err(unreadable)?;
        Ok(Box::new(io::BufReader::with_capacity(1 << 17, file)))
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Where in the archive a descriptor's content is.
fn blob(descriptor: &Value) -> Option<String> {
    let (kind, digest) = descriptor.get("digest")?.as_str()?.split_once(':')?;
    let fits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (fits(kind) && fits(digest)).then(|| format!("blobs/{kind}/{digest}"))
}

/// A name as it is looked for: without what doesn't count in it.
fn plain(name: &str) -> Option<String> {
    within(name).filter(|name| !name.is_empty())
}

/// The same for one that may go up, as long as it stays inside.
fn within(name: &str) -> Option<String> {
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

fn compressed(magic: &[u8]) -> Result<(), String> {
    let form = if magic.starts_with(&ZSTD) {
        "zstd"
    } else if magic.starts_with(&XZ) {
        "xz"
    } else if magic.starts_with(&BZIP2) {
        "bzip2"
    } else {
        return Ok(());
    };
    Err(format!("it is compressed with {form}, which can't be read here: compress it with gzip, or not at all"))
}

/// The archive as a file without compression; what isn't becomes one, which has no name and goes with this process.
fn seekable(mut file: File) -> Result<File, String> {
    let failed = |error: io::Error| format!("it can't be read: {error}");
    let is_file = file.rewind().is_ok();
    let mut magic = Vec::new();
    (&mut file).take(4).read_to_end(&mut magic).map_err(failed)?;
    compressed(&magic)?;
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
    let copied = io::copy(&mut (&mut whole).take(LARGEST), &mut copy).map_err(failed)?;
    if copied == LARGEST {
        return Err("it is larger than 256 GiB".to_owned());
    }
    copy.rewind().map_err(failed)?;
    Ok(copy)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_inside() {
        assert_eq!(plain("./a//b/"), Some("a/b".into()));
        assert_eq!(plain("/a"), Some("a".into()));
        assert_eq!(within("x/../y/layer.tar"), Some("y/layer.tar".into()));
        assert_eq!(within("../y"), None);
        assert_eq!(plain("./"), None);
    }

    #[test]
    fn only_digests_name_blobs() {
        let of = |digest: &str| blob(&serde_json::json!({ "digest": digest }));
        assert_eq!(of("sha256:ab12"), Some("blobs/sha256/ab12".into()));
        for bad in ["sha256:../x", "sha256:", "x", "a/b:c"] {
            assert_eq!(of(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        assert!(compressed(&ZSTD).unwrap_err().contains("zstd"));
        assert!(compressed(b"abcd").is_ok());
    }
}
