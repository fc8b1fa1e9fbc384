use super::*;
use crate::known_agents::{MountExtent, Platform};
use crate::{MissingAgent, Origin};

const PACKAGE: Package = Package {
    name: "claude-here",
    suffix: "",
    module: "claude-here",
    program: "claude",
    extent: MountExtent::File,
    version: "1.2.3",
    integrity: None,
};

fn build_archive(entries: &[(&str, u32, &str)]) -> Vec<u8> {
    let mut tar = tar::Builder::new(Vec::new());
    for (path, mode, text) in entries {
        let mut header = tar::Header::new_gnu();
        header.set_mode(*mode);
        header.set_size(text.len() as u64);
        // Writes the path directly: the tar crate rejects paths with "..".
        let name = path.as_bytes();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name);
        header.set_cksum();
        tar.append(&header, text.as_bytes()).unwrap();
    }
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(&tar.into_inner().unwrap()).unwrap();
    packed.finish().unwrap()
}

fn integrity_of(bytes: &[u8]) -> Integrity {
    Integrity::parse_integrity(&format!("sha1-x sha512-{}", STANDARD.encode(Sha512::digest(bytes)))).unwrap()
}

fn install_package(locations: &AgentLocations, bytes: &[u8], integrity: &Integrity) -> Result<InstalledVersion, Error> {
    let mut fetching = locations.begin_install(Agent::Claude, PACKAGE, "1.2.3")?;
    for piece in bytes.chunks(7) {
        fetching.write_chunk(piece)?;
    }
    fetching.verify_and_install(integrity)
}

fn left_over_files(locations: &AgentLocations) -> Vec<String> {
    let mut names = Vec::new();
    for directory in [locations.data_dir.join(AGENTS_DIR), locations.install_dir(Agent::Claude)] {
        names.extend(fs::read_dir(directory).unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap()));
    }
    names.sort();
    names
}

#[test]
fn installs_a_package_completely_or_not_at_all() {
    let base = tempfile::tempdir().unwrap();
    let locations = AgentLocations { data_dir: base.path().join("data"), ..AgentLocations::default() };
    let good = build_archive(&[("package/claude", 0o700, "#!/bin/sh\n"), ("package/README", 0o600, "words")]);

    let other = integrity_of(b"something else");
    let refused = install_package(&locations, &good, &other).unwrap_err();
    assert!(matches!(&refused, Error::Mismatch { .. }), "{refused}");
    let cut = &good[..good.len() / 2];
    assert!(
        matches!(install_package(&locations, cut, &integrity_of(cut)), Err(Error::Unpack(_))),
        "an archive that breaks off"
    );
    let empty = build_archive(&[("package/README", 0o600, "words")]);
    assert!(matches!(install_package(&locations, &empty, &integrity_of(&empty)), Err(Error::NoProgram("claude"))));
    let outward = build_archive(&[("package/claude", 0o755, "x"), ("package/../../../../outside", 0o755, "x")]);
    assert!(matches!(install_package(&locations, &outward, &integrity_of(&outward)), Err(Error::Unpack(_))));
    drop(locations.begin_install(Agent::Claude, PACKAGE, "1.2.3").unwrap());
    assert_eq!(left_over_files(&locations), ["claude"], "failed and abandoned installs leave no files");
    assert!(locations.find_agent(Agent::Claude).is_err());

    let done = install_package(&locations, &good, &integrity_of(&good)).unwrap();
    assert_eq!((done.version.as_str(), done.bytes), ("1.2.3", 15));
    assert_eq!(locations.find_version(Agent::Claude, "1.2.3"), Some(done.clone()));
    let mode = |path: &str| fs::metadata(done.directory.join(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode("package"), mode("package/claude"), mode("package/README")), (0o755, 0o755, 0o644));
    if Platform::current().is_some() {
        let found = locations.find_agent(Agent::Claude).unwrap();
        assert_eq!((found.origin, found.detect_version().as_deref()), (Origin::Installed, Some("1.2.3")));
    }
    assert_eq!(
        install_package(&locations, &good, &integrity_of(&good)).unwrap().directory,
        done.directory,
        "installing again is harmless"
    );

    assert_eq!(locations.remove_versions(Agent::Claude, None).unwrap(), ["1.2.3"]);
    assert!(matches!(locations.remove_versions(Agent::Claude, Some("1.2.3")), Err(Error::NotInstalled { .. })));
    assert!(
        locations
            .find_agent(Agent::Claude)
            .is_err_and(|missing: MissingAgent| missing.remedy.contains("atoll agents install"))
    );
    assert_eq!(left_over_files(&locations), ["claude"]);
}

#[test]
fn accepts_only_sha512_checksums() {
    for text in ["", "sha1-2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "sha512-", "sha512-AAAA", "sha512-!", "md5-x"] {
        assert!(matches!(Integrity::parse_integrity(text), Err(Error::Checksum(_))), "{text}");
    }
    for agent in Agent::ALL {
        for machine in [Platform::X64, Platform::Arm64] {
            let integrity = agent.package_for(machine).and_then(|package| package.integrity);
            assert!(integrity.is_none_or(|text| Integrity::parse_integrity(text).is_ok()), "{agent}");
        }
    }
}

#[test]
fn rejects_versions_that_are_paths() {
    let locations = AgentLocations::default();
    for version in ["", ".", "..", "1/2", "../1.0.0", ".new-1", "latest", "1\n", "1 2"] {
        assert!(
            matches!(locations.begin_install(Agent::Claude, PACKAGE, version), Err(Error::Version(_))),
            "{version:?}"
        );
    }
}
