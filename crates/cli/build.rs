//! Embeds the worker into the program, so that users install one file. `EMBED_WORKER` is its path. Without that variable,
//! a release build, such as that of `cargo install`, builds the worker itself. Other builds use the worker beside the
//! program.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Builds the worker in a target directory of its own: the outer cargo has locked its own one.
fn build_worker(out_dir: &Path) -> Result<PathBuf> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the crate has no parent directory")?;
    println!("cargo:rerun-if-changed={}", crates.display());
    let target = out_dir.join("worker-target");
    let script = crates.with_file_name("scripts").join("build-worker");
    let built = Command::new(&script)
        .env("CARGO_TARGET_DIR", &target)
        // The flags of the outer build would replace those of the script.
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .stdout(io::stderr())
        .status()
        .map_err(|error| format!("{}: {error}", script.display()))?;
    if !built.success() {
        return Err(
            format!("{} failed: build the worker with `make worker` and set EMBED_WORKER", script.display()).into()
        );
    }
    Ok(target.join("worker/atoll-worker"))
}

fn main() -> Result<()> {
    println!("cargo:rerun-if-env-changed=EMBED_WORKER");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    let worker = match env::var_os("EMBED_WORKER") {
        Some(path) => Some(PathBuf::from(path)).filter(|path| !path.as_os_str().is_empty()),
        None if env::var_os("PROFILE").is_some_and(|profile| profile == "release") => Some(build_worker(&out_dir)?),
        None => None,
    };
    let embedded = out_dir.join("worker");
    match worker {
        Some(path) => {
            println!("cargo:rerun-if-changed={}", path.display());
            fs::copy(&path, &embedded).map_err(|error| format!("EMBED_WORKER: {}: {error}", path.display()))?;
        }
        None => fs::write(&embedded, [])?,
    }
    Ok(())
}
