//! Embeds the worker into the program, so that users install one file. `EMBED_WORKER` is its path; without it, as in a
//! plain `cargo build`, the program uses the worker beside it.

use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-env-changed=EMBED_WORKER");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?).join("worker");
    match env::var_os("EMBED_WORKER").filter(|path| !path.is_empty()) {
        Some(path) => {
            println!("cargo:rerun-if-changed={}", PathBuf::from(&path).display());
            fs::copy(&path, &out)
                .map_err(|error| format!("EMBED_WORKER: {}: {error}", PathBuf::from(path).display()))?;
        }
        None => fs::write(&out, [])?,
    }
    Ok(())
}
