//! Embeds the worker and the web page into the program, so that users install one file. `EMBED_WORKER` is the worker's
//! path; without it, as in a plain `cargo build`, the program uses the worker beside it. `EMBED_PAGE` is the directory of
//! the built page; without it, the server says how to build the page.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("no OUT_DIR")?);
    embed_worker(&out.join("worker"))?;
    embed_page(&out)
}

/// The path in a variable, if it is set and not empty.
fn path_variable(name: &str) -> Option<PathBuf> {
    println!("cargo:rerun-if-env-changed={name}");
    let path = env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from)?;
    println!("cargo:rerun-if-changed={}", path.display());
    Some(path)
}

fn embed_worker(out: &Path) -> Result<(), Box<dyn Error>> {
    match path_variable("EMBED_WORKER") {
        Some(path) => {
            fs::copy(&path, out).map_err(|error| format!("EMBED_WORKER: {}: {error}", path.display()))?;
        }
        None => fs::write(out, [])?,
    }
    Ok(())
}

/// Copies the page and writes a table of its files. A file `NAME.br` or `NAME.gz` is a compressed form of `NAME`.
fn embed_page(out: &Path) -> Result<(), Box<dyn Error>> {
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

fn copy_files(from: &Path, to: &Path, prefix: &str, files: &mut Vec<String>) -> std::io::Result<()> {
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
