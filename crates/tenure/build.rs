//! Embeds the SQL files of `sql/migrations` and `sql/functions`, in the order of their names.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var("CARGO_MANIFEST_DIR").map_err(io::Error::other)?).join("sql");
    let mut code = String::new();
    for folder in ["migrations", "functions"] {
        println!("cargo::rerun-if-changed=sql/{folder}");
        embed(&mut code, folder, &root.join(folder))?;
    }
    let out = PathBuf::from(env::var("OUT_DIR").map_err(io::Error::other)?);
    fs::write(out.join("sql_files.rs"), code)
}

/// Writes `pub(super) const FOLDER: &[(&str, &str)]` of names (without `.sql`) and texts.
fn embed(code: &mut String, folder: &str, path: &Path) -> io::Result<()> {
    let mut files: Vec<PathBuf> = match fs::read_dir(path) {
        Ok(entries) => entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(error),
    };
    files.retain(|file| file.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    let _ = writeln!(code, "pub(super) const {}: &[(&str, &str)] = &[", folder.to_uppercase());
    for file in files {
        let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let _ = writeln!(code, "    ({name:?}, include_str!({:?})),", file.display().to_string());
    }
    let _ = writeln!(code, "];");
    Ok(())
}
