//! The keys that seal secrets, from a private file or the configuration.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use secrecy::{ExposeSecret, SecretBox, SecretString};
use sha2::{Digest, Sha256};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

pub const KEY_FILE: &str = "secret-keys";
const FILE_HEADER: &str = "# Keys of this server's secrets: the last one seals, all of them open. Without them the \
                    secrets are lost.\n";
/// Larger than any key file.
const MAX_FILE_BYTES: u64 = 1 << 20;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot use the seal keys in {path}: {source}")]
    Unusable { path: PathBuf, source: std::io::Error },
    #[error(
        "other users can read the seal keys in {path} (mode {mode:o}); run `chmod 600 {path}`, then `atoll secret rotate`"
    )]
    Exposed { path: PathBuf, mode: u32 },
    #[error("line {line} of {path} is not a key: expected 32 bytes in base64")]
    BadLine { path: PathBuf, line: usize },
    #[error(
        "`secret.key` (ATOLL_SECRET_KEY) is not a key: expected 32 bytes in base64, as `head -c 32 /dev/urandom | base64` prints them"
    )]
    BadConfiguredKey,
    #[error("{0} is sealed with the key {1}, which this server does not have; restore that key, or store it again")]
    UnknownKey(String, String),
    #[error("cannot open {0} with its key: its row was changed; store it again")]
    Changed(String),
}

pub struct SealKey {
    /// Derived from the key, so that a missing key can be named.
    pub id: String,
    bytes: SecretBox<[u8; 32]>,
}

impl std::fmt::Debug for SealKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Key({})", self.id)
    }
}

impl SealKey {
    fn new(bytes: [u8; 32]) -> Self {
        // A partial hash of 256 random bits reveals nothing.
        let hash = Sha256::new().chain_update(b"atoll secret key\0").chain_update(bytes).finalize();
        let id = hash[..8].iter().map(|byte| format!("{byte:02x}")).collect();
        Self { id, bytes: SecretBox::new(Box::new(bytes)) }
    }

    fn decode(text: &str) -> Option<Self> {
        let text = text.trim();
        let bytes = STANDARD.decode(text).or_else(|_| STANDARD_NO_PAD.decode(text)).ok()?;
        Some(Self::new(bytes.try_into().ok()?))
    }

    pub fn generate() -> Self {
        Self::new(rand::random())
    }

    pub fn bytes(&self) -> &[u8; 32] {
        self.bytes.expose_secret()
    }

    fn encode(&self) -> String {
        STANDARD.encode(self.bytes())
    }
}

/// All keys. The last one seals.
#[derive(Debug)]
pub struct KeyRing(Vec<SealKey>);

impl KeyRing {
    pub fn new(keys: Vec<SealKey>) -> Self {
        Self(keys)
    }

    pub fn current(&self) -> Option<&SealKey> {
        self.0.last()
    }

    pub fn get(&self, id: &str) -> Option<&SealKey> {
        self.0.iter().find(|key| key.id == id)
    }
}

/// The key file and the configured key.
#[derive(Debug, Clone)]
pub struct KeyStore {
    file: PathBuf,
    /// Seals instead of the file's last key; the file's keys still open.
    configured: Option<SecretString>,
}

impl KeyStore {
    pub fn new(data_dir: &Path, configured: Option<SecretString>) -> Self {
        Self { file: data_dir.join(KEY_FILE), configured }
    }

    /// Reads all keys. Reading each time lets a repaired file work without a restart.
    pub fn read_ring(&self) -> Result<KeyRing, Error> {
        let mut keys = self.read_file_keys()?;
        if let Some(text) = &self.configured {
            keys.push(SealKey::decode(text.expose_secret()).ok_or(Error::BadConfiguredKey)?);
        }
        Ok(KeyRing(keys))
    }

    /// Reads all keys and creates one if there is none.
    pub fn sealing_ring(&self) -> Result<KeyRing, Error> {
        let ring = self.read_ring()?;
        if ring.current().is_some() { Ok(ring) } else { self.add_key() }
    }

    /// Adds a new key for sealing, unless the key is configured.
    pub fn rotate_key(&self) -> Result<KeyRing, Error> {
        if self.configured.is_some() { self.read_ring() } else { self.add_key() }
    }

    fn unusable_error(&self, source: std::io::Error) -> Error {
        Error::Unusable { path: self.file.clone(), source }
    }

    fn read_file_keys(&self) -> Result<Vec<SealKey>, Error> {
        let file = match std::fs::File::open(&self.file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            opened => opened.map_err(|error| self.unusable_error(error))?,
        };
        let mode = file.metadata().map_err(|error| self.unusable_error(error))?.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 {
            return Err(Error::Exposed { path: self.file.clone(), mode });
        }
        let mut text = String::new();
        file.take(MAX_FILE_BYTES).read_to_string(&mut text).map_err(|error| self.unusable_error(error))?;
        let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let keys = lines
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
            .map(|(line, text)| SealKey::decode(text).ok_or_else(|| Error::BadLine { path: self.file.clone(), line }));
        let keys = keys.collect();
        drop(SecretString::from(text));
        keys
    }

    /// Adds a new key. It is synced to disk before it seals anything.
    fn add_key(&self) -> Result<KeyRing, Error> {
        let mut keys = self.read_file_keys()?;
        keys.push(SealKey::generate());
        let lines: String = keys.iter().map(|key| key.encode() + "\n").collect();
        let text = SecretString::from(format!("{FILE_HEADER}{lines}"));
        self.write_file(text.expose_secret()).map_err(|error| self.unusable_error(error))?;
        Ok(KeyRing(keys))
    }

    fn write_file(&self, text: &str) -> std::io::Result<()> {
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

    fn place(dir: &Path, configured: Option<&str>) -> KeyStore {
        KeyStore::new(dir, configured.map(SecretString::from))
    }

    #[test]
    fn creates_a_key_at_first_use() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), None);
        assert!(place.read_ring().unwrap().current().is_none());
        assert!(!dir.path().join(KEY_FILE).exists(), "reading creates no file");
        let first = place.sealing_ring().unwrap().current().unwrap().id.clone();
        assert_eq!(place.sealing_ring().unwrap().current().unwrap().id, first);
        assert_eq!(std::fs::metadata(dir.path().join(KEY_FILE)).unwrap().permissions().mode() & 0o7777, 0o600);
        let ring = place.rotate_key().unwrap();
        assert_ne!(ring.current().unwrap().id, first);
        assert!(place.read_ring().unwrap().get(&first).is_some(), "older keys still open");
    }

    #[test]
    fn rejects_a_file_that_other_users_can_read() {
        let dir = tempfile::tempdir().unwrap();
        let place = place(dir.path(), None);
        place.sealing_ring().unwrap();
        for mode in [0o640, 0o604, 0o660] {
            std::fs::set_permissions(dir.path().join(KEY_FILE), PermissionsExt::from_mode(mode)).unwrap();
            let refused = place.read_ring().unwrap_err().to_string();
            assert!(refused.contains("chmod 600") && refused.contains(&format!("{mode:o}")), "{refused}");
            assert!(place.sealing_ring().is_err() && place.rotate_key().is_err());
        }
    }

    #[test]
    fn a_configured_key_seals_and_file_keys_still_open() {
        let dir = tempfile::tempdir().unwrap();
        let in_file = place(dir.path(), None).sealing_ring().unwrap().current().unwrap().id.clone();
        let key = STANDARD.encode([7; 32]);
        let ring = place(dir.path(), Some(&key)).sealing_ring().unwrap();
        assert_eq!(ring.current().unwrap().bytes(), &[7; 32]);
        assert!(ring.get(&in_file).is_some());
        assert_eq!(place(dir.path(), Some(&key)).rotate_key().unwrap().current().unwrap().bytes(), &[7; 32]);
        for bad in ["", "short", &STANDARD.encode([7; 31]), "not base64 at all, but long enough to be one!"] {
            let refused = place(dir.path(), Some(bad)).read_ring().unwrap_err().to_string();
            assert!(refused.contains("ATOLL_SECRET_KEY") && (bad.is_empty() || !refused.contains(bad)), "{refused}");
        }
    }

    #[test]
    fn a_bad_line_is_reported_without_its_content() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(KEY_FILE);
        std::fs::write(&path, format!("# keys\n\n{}\nhunter2\n", STANDARD.encode([1; 32]))).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        let refused = place(dir.path(), None).read_ring().unwrap_err().to_string();
        assert!(refused.contains("line 4") && !refused.contains("hunter2"), "{refused}");
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(place(dir.path(), None).read_ring().is_err());
        assert!(!format!("{:?}", SealKey::new([9; 32])).contains("9, 9"));
    }
}
