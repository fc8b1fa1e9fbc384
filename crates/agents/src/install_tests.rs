use super::*;
use crate::known::{Extent, Machine};
use crate::{Missing, Origin};

const PACKAGE: Package = Package {
    name: "claude-here",
    suffix: "",
    module: "claude-here",
    program: "claude",
    extent: Extent::File,
    version: "1.2.3",
    integrity: None,
};

fn archive(entries: &[(&str, u32, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_size(text.len() as u64);
        // As it stands, also where the library would not let it.
        let name = path.as_bytes();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        header.set_cksum();
        tar.append(&header, text.as_bytes()).unwrap();
    }
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&tar.into_inner().unwrap()).unwrap();
    packed.finish().unwrap()
}

fn sum(bytes: &[u8]) -> Integrity {
    Integrity::read(&format!("sha1-x sha512-{}", STANDARD.encode(Sha512::digest(bytes)))).unwrap()
}

fn install(places: &Places, bytes: &[u8], integrity: &Integrity) -> Result<Installed, Error> {
    let mut fetching = places.fetch(Agent::Claude, PACKAGE, "1.2.3")?;
    for piece in bytes.chunks(7) {
        fetching.write(piece)?;
    }
    fetching.finish(integrity)
}

fn left(places: &Places) -> Vec<String> {
    let mut names = Vec::new();
    for directory in [places.data_dir.join(DIRECTORY), places.installed(Agent::Claude)] {
        names.extend(fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()));
    }
    names.sort();
    names
}

#[test]
fn a_package_is_there_whole_or_not_at_all() {
    let base = tempfile::tempdir().unwrap();
    let places = Places { data_dir: base.path().join("data"), ..Places::default() };
    let good = archive(&[("package/claude", 0o700, "#!/bin/sh\n"), ("package/README", 0o600, "words")]);

    let other = sum(b"something else");
    let refused = install(&places, &good, &other).unwrap_err();
    assert!(matches!(&refused, Error::Mismatch { .. }), "{refused}");
    let cut = &good[..good.len() / 2];
    assert!(matches!(install(&places, cut, &sum(cut)), Err(Error::Unpack(_))), "an archive that breaks off");
    let empty = archive(&[("package/README", 0o600, "words")]);
    assert!(matches!(install(&places, &empty, &sum(&empty)), Err(Error::NoProgram("claude"))));
    let outward = archive(&[("package/claude", 0o755, "x"), ("package/../../../../outside", 0o755, "x")]);
    assert!(matches!(install(&places, &outward, &sum(&outward)), Err(Error::Unpack(_))));
    drop(places.fetch(Agent::Claude, PACKAGE, "1.2.3").unwrap());
    assert_eq!(left(&places), ["claude"], "nothing is left of what failed or was given up");
    assert!(places.find(Agent::Claude).is_err());

    let done = install(&places, &good, &sum(&good)).unwrap();
    assert_eq!((done.version.as_str(), done.bytes), ("1.2.3", 15));
    assert_eq!(places.is_there(Agent::Claude, "1.2.3"), Some(done.clone()));
    let mode = |path: &str| fs::metadata(done.directory.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("package"), mode("package/claude"), mode("package/README")), (0o755, 0o755, 0o644));
    if Machine::here().is_some() {
        let found = places.find(Agent::Claude).unwrap();
        assert_eq!((found.origin, found.version().as_deref()), (Origin::Installed, Some("1.2.3")));
    }
    assert_eq!(install(&places, &good, &sum(&good)).unwrap().directory, done.directory, "again is no harm");

    assert_eq!(places.remove(Agent::Claude, None).unwrap(), ["1.2.3"]);
    assert!(matches!(places.remove(Agent::Claude, Some("1.2.3")), Err(Error::NotInstalled { .. })));
    assert!(places.find(Agent::Claude).is_err_and(|missing: Missing| missing.remedy.contains("atoll agents install")));
    assert_eq!(left(&places), ["claude"]);
}

#[test]
fn only_what_can_be_checked_is_a_checksum() {
    for text in ["", "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "sha512-", "sha512-AAAA", "sha512-!", "md5-x"] {
        assert!(matches!(Integrity::read(text), Err(Error::Checksum(_))), "{text}");
    }
    for agent in Agent::ALL {
        for machine in [Machine::X64, Machine::Arm64] {
            let integrity = agent.package(machine).and_then(|package| package.integrity);
            assert!(integrity.is_none_or(|text| Integrity::read(text).is_ok()), "{agent}");
        }
    }
}

#[test]
fn a_version_is_no_path() {
    let places = Places::default();
    for version in ["", ".", "..", "1/2", "../1.0.0", ".new-1", "latest", "1\n", "1 2"] {
        assert!(matches!(places.fetch(Agent::Claude, PACKAGE, version), Err(Error::Version(_))), "{version:?}");
    }
}
