//! The keys that secrets are sealed with: a file that nobody else can read, or the configuration.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use secrecy::{ExposeSecret, SecretBox, SecretString};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub const FILE: &str = "secret-keys";
const HEAD: &str = "# Keys that seal this server's secrets: the last one seals, all of them open. Without them the \
                    secrets are lost.\n";
/// More than any ring has.
const LARGEST: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("can't use the keys of secrets in {path}: {source}")]
    Unusable { path: PathBuf, source: std::io::Error },
    #[error(
        "others can read the keys of secrets in {path} (mode {mode:o}); run `chmod 600 {path}`, and then `atoll secret rotate`"
    )]
    Open { path: PathBuf, mode: u32 },
    #[error("line {line} of {path} is not a key: 32 bytes in base64 on a line of their own")]
    Line { path: PathBuf, line: usize },
    #[error(
        "`secret.key` (ATOLL_SECRET_KEY) is not a key: 32 bytes in base64, as `head -c 32 /dev/urandom | base64` makes them"
    )]
    Configured,
    #[error(
        "{0} is sealed with the key {1}, which this server does not have; put that key back, or set the secret again"
    )]
    Unknown(String, String),
    #[error("{0} does not open with its key: its row was changed, or belongs to another one; set the secret again")]
    Changed(String),
}

pub struct Key {
    /// Derived from the key, so that a wrong one is known by its name.
    pub id: String,
    bytes: SecretBox<[u8; 32]>,
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

impl Key {
    fn new(bytes: [u8; 32]) -> Self {
        // The key is 256 random bits: a part of a hash of it tells nothing.
        let hash = Sha256::new().chain_update(b"atoll secret key\0").chain_update(bytes).finalize();
        let id = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { id, bytes: SecretBox::new(Box::new(bytes)) }
    }

    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        let bytes = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok()?;
        Some(Self::new(bytes.try_into().ok()?))
    }

    pub fn random() -> Self {
        Self::new(rand::random())
    }

    pub fn bytes(&self) -> &[u8; 32] {
        self.bytes.expose_secret()
    }

    fn written(&self) -> String {
        STANDARD.encode(self.bytes())
    }
}

/// Every key that is known. The last one seals.
#[derive(Debug)]
pub struct Ring(Vec<Key>);

impl Ring {
    pub fn of(keys: Vec<Key>) -> Self {
        Self(keys)
    }

    pub fn current(&self) -> Option<&Key> {
        self.0.last()
    }

    pub fn get(&self, id: &str) -> Option<&Key> {
        self.0.iter().find(|key| key.id == id)
    }
}

/// Where the keys are.
#[derive(Debug, Clone)]
pub struct Place {
    file: PathBuf,
    /// Seals in place of the file's, whose keys still open.
    configured: Option<SecretString>,
}

impl Place {
    pub fn new(data_dir: &Path, configured: Option<SecretString>) -> Self {
        Self { file: data_dir.join(FILE), configured }
    }

    /// Read each time: whoever mends the file needn't start the server again.
    pub fn read(&self) -> Result<Ring, Error> {
        let mut keys = self.in_file()?;
        if let Some(text) = &self.configured {
            keys.push(Key::read(text.expose_secret()).ok_or(Error::Configured)?);
        }
        Ok(Ring(keys))
    }

    /// With a key to seal with, made now if there was none.
    pub fn for_sealing(&self) -> Result<Ring, Error> {
        let ring = self.read()?;
        if ring.current().is_some() { Ok(ring) } else { self.add() }
    }

    /// With a new key to seal with; a configured one stays what it is.
    pub fn renew(&self) -> Result<Ring, Error> {
        if self.configured.is_some() { self.read() } else { self.add() }
    }

    fn unusable(&self, source: std::io::Error) -> Error {
        Error::Unusable { path: self.file.clone(), source }
    }

    fn in_file(&self) -> Result<Vec<Key>, Error> {
        let file = match std::fs::File::open(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.map_err(|error| self.unusable(error))?,
        };
        let mode = file.metadata().map_err(|error| self.unusable(error))?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Error::Open { path: self.file.clone(), mode });
        }
        let mut text = String::new();
        file.take(LARGEST).read_to_string(&mut text).map_err(|error| self.unusable(error))?;
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let keys = lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(line, text)| Key::read(text).ok_or_else(|| Error::Line { path: self.file.clone(), line }));
        let keys = keys.collect();
        drop(SecretString::from(text));
        keys
    }

    /// Adds a new key: on disk, whole and for good, before anything is sealed with it.
    fn add(&self) -> Result<Ring, Error> {
        let mut keys = self.in_file()?;
        keys.push(Key::random());
        let lines: String = keys.iter().map(|key| key.written() + "\n").collect();
        let text = SecretString::from(format!("{HEAD}{lines}"));
        self.write(text.expose_secret()).map_err(|error| self.unusable(error))?;
        Ok(Ring(keys))
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        let beside = self.file.with_extension("new");
        match std::fs::remove_file(&beside) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        let mut options = std::fs::OpenOptions::new();
        let mut file = options.write(true).create_new(true).mode(0o600).open(&beside)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &self.file)?;
        match self.file.parent() {
            Some(directory) => std::fs::File::open(directory)?.sync_all(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(dir: &Path, configured: Option<&str>) -> Place {
        Place::new(dir, configured.map(SecretString::from))
    }

    #[test]
    fn a_key_is_made_at_first_use_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), None);
        assert!(place.read().unwrap().current().is_none());
        assert!(!dir.path().join(FILE).exists(), "looking makes nothing");
        let first = place.for_sealing().unwrap().current().unwrap().id.clone();
        assert_eq!(place.for_sealing().unwrap().current().unwrap().id, first);
        assert_eq!(std::fs::metadata(dir.path().join(FILE)).unwrap().permissions().mode() & 0o7777, 0o600);
        let ring = place.renew().unwrap();
        assert_ne!(ring.current().unwrap().id, first);
        assert!(place.read().unwrap().get(&first).is_some(), "older ones still open");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), None);
        place.for_sealing().unwrap();
        for mode in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(dir.path().join(FILE), PermissionsExt::from_mode(mode)).unwrap();
            let refused = place.read().unwrap_err().to_string();
            assert!(refused.contains("chmod 600") && refused.contains(&format!("{mode:o}")), "{refused}");
            assert!(place.for_sealing().is_err() && place.renew().is_err());
        }
    }

    #[test]
    fn a_configured_key_seals_and_the_file_s_still_open() {
        let dir = tempfile::tempdir().unwrap();
        let in_file = place(dir.path(), None).for_sealing().unwrap().current().unwrap().id.clone();
        let given = STANDARD.encode([7; 32]);
        let ring = place(dir.path(), Some(&given)).for_sealing().unwrap();
        assert_eq!(ring.current().unwrap().bytes(), &[7; 32]);
        assert!(ring.get(&in_file).is_some());
        assert_eq!(place(dir.path(), Some(&given)).renew().unwrap().current().unwrap().bytes(), &[7; 32]);
        for bad in ["", "short", &STANDARD.encode([7; 31]), "not base64 at all, but long enough to be one!"] {
            let refused = place(dir.path(), Some(bad)).read().unwrap_err().to_string();
            assert!(refused.contains("ATOLL_SECRET_KEY") && (bad.is_empty() || !refused.contains(bad)), "{refused}");
        }
    }

    #[test]
    fn what_is_no_key_is_named_by_its_line_only() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(FILE);
        std::fs::write(&path, format!("# keys\n\n{}\nhunter2\n", STANDARD.encode([1; 32]))).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let refused = place(dir.path(), None).read().unwrap_err().to_string();
        assert!(refused.contains("line 4") && !refused.contains("hunter2"), "{refused}");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(place(dir.path(), None).read().is_err());
        assert!(!format!("{:?}", Key::new([9; 32])).contains("9, 9"));
    }
}
