//! Embeds the worker and the web page into the program, so that users install one file.
//!
//! `EMBED_WORKER` is the worker's path. Without that variable, a release build, such as that of `cargo install`, builds the
//! worker itself; other builds use the worker beside the program. Release builds compress it. `EMBED_PAGE` is the directory
//! of the built page; without it, the server says how to build the page.

use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> Result<()> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    embed_worker(&out)?;
    embed_page(&out)
}

/// The path in a variable, if it is set and not empty.
fn path_variable(name: &str) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={name}");
    let path = env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from)?;
    println!("cargo:rerun-if-changed={}", path.display());
    Some(path)
}

fn embed_worker(out: &Path) -> Result<()> {
    let is_release = env::var_os("PROFILE").is_some_and(|profile| profile == "release");
    let worker = match path_variable("EMBED_WORKER") {
        Some(path) => Some(path),
        None if is_release && env::var_os("EMBED_WORKER").is_none() => Some(build_worker(out)?),
        None => None,
    };
    let Some(path) = worker else { return write_worker(out, "None", &[]) };
    let program = fs::read(&path).map_err(|error| format!("EMBED_WORKER: {}: {error}", path.display()))?;
    let hash: String = Sha256::digest(&program).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let description = format!(
        "Some(EmbeddedWorker {{ hash: {hash:?}, size: {}, is_compressed: {is_release}, bytes: include_bytes!({:?}) }})",
        program.len(),
        out.join("worker"),
    );
    if !is_release {
        return write_worker(out, &description, &program);
    }
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(&program)?;
    write_worker(out, &description, &encoder.finish()?)
}

/// Writes the embedded bytes, and the expression of type `Option<EmbeddedWorker>` that includes them.
fn write_worker(out: &Path, description: &str, bytes: &[u8]) -> Result<()> {
    fs::write(out.join("worker"), bytes)?;
    Ok(fs::write(out.join("worker.rs"), description)?)
}

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

/// Copies the page and writes a table of its files. A file `NAME.br` or `NAME.gz` is a compressed form of `NAME`.
fn embed_page(out: &Path) -> Result<()> {
    let copy = out.join("page");
    if copy.exists() {
        fs::remove_dir_all(&copy)?;
    }
    let mut files = Vec::new();
    if let Some(page) = path_variable("EMBED_PAGE") {
        copy_files(&page, &copy, "", &mut files).map_err(|error| format!("EMBED_PAGE: {}: {error}", page.display()))?;
    }
    files.sort();
    let mut table = String::from("&[\n");
    for file in &files {
        let is_compressed = |form: &str| file.strip_suffix(form).is_some_and(|name| files.iter().any(|it| it == name));
        if is_compressed(".br") || is_compressed(".gz") {
            continue;
        }
        let include = |name: &str| format!("include_bytes!({:?})", copy.join(name));
        let form = |suffix: &str| {
            let name = format!("{file}{suffix}");
            if files.contains(&name) { format!("Some({})", include(&name)) } else { "None".to_owned() }
        };
        let (content, brotli, gzip) = (include(file), form(".br"), form(".gz"));
        writeln!(table, "PageFile {{ path: {file:?}, content: {content}, brotli: {brotli}, gzip: {gzip} }},")?;
    }
    table.push_str("]\n");
    Ok(fs::write(out.join("page.rs"), table)?)
}

fn copy_files(from: &Path, to: &Path, prefix: &str, files: &mut Vec<String>) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let Some(name) = entry.file_name().to_str().map(str::to_owned) else { continue };
        let (path, target) = (format!("{prefix}{name}"), to.join(&name));
        if name.starts_with('.') {
            continue;
        }
        if entry.file_type()?.is_dir() {
            copy_files(&entry.path(), &target, &format!("{path}/"), files)?;
        } else {
            fs::copy(entry.path(), target)?;
            files.push(path);
        }
    }
    Ok(())
}
