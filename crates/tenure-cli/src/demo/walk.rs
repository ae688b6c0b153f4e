//! Which files the demo runs over, and where they are from.

use std::env;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// Larger files are skipped.
pub const FILE_BYTES_MAX: u64 = 1024 * 1024;
/// At most this many files of a folder given with `--path`; the output says when there were more.
pub const FILES_MAX: usize = 5_000;
/// How many files the default wants: what the project's own tree lacks comes from other real text on this machine.
pub const FILES_DEFAULT: usize = 360;

const FILL_BYTES_MAX: u64 = 48 * 1024; // files that only fill up stay small, so that the demo stays short
const FILES_PER_DEPENDENCY: usize = 6; // from many crates a little, not all of the first
const DEPTH_MAX: usize = 32;
const SNIFFED_BYTES: usize = 8 * 1024;
const SKIPPED_FOLDERS: [&str; 8] = [".git", ".hg", ".svn", "target", "node_modules", ".venv", "__pycache__", ".tenure"];

/// The files of one run.
#[derive(Debug, Default)]
pub struct Corpus {
    /// Absolute paths, without repetition.
    pub files: Vec<PathBuf>,
    /// Where they are from, in words for the reader.
    pub sources: Vec<Source>,
    /// Files that were seen and left out.
    pub skipped: Skipped,
}

/// A folder and how many files were taken from it.
#[derive(Debug)]
pub struct Source {
    pub what: &'static str,
    pub folder: PathBuf,
    pub files: usize,
}

/// Why files were left out.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Skipped {
    pub binary: usize,
    pub large: usize,
    pub empty: usize,
    pub unreadable: usize,
    /// There are more files than the limit; they were not even counted.
    pub over_limit: bool,
}

/// The text files under `path` (a folder or one file); without one, the files of this project's checkout, filled up to
/// [`FILES_DEFAULT`] with the sources of its dependencies and the system's documentation.
///
/// # Errors
/// The path does not exist or cannot be read, or holds no text file.
pub fn walk(path: Option<&Path>) -> Result<Corpus> {
    let corpus = match path {
        Some(path) => walk_given(path)?,
        None => walk_default(),
    };
    if corpus.files.is_empty() {
        let place =
            path.map_or_else(|| "this project, cargo's registry or /usr/share".into(), |p| p.display().to_string());
        bail!("no text files found in {place}; name a folder that has some: tenure demo --path DIR");
    }
    Ok(corpus)
}

fn walk_given(path: &Path) -> Result<Corpus> {
    let path = path.canonicalize().with_context(|| format!("--path {}: cannot be opened", path.display()))?;
    let mut corpus = Corpus::default();
    if path.is_file() {
        corpus.consider(&path, FILE_BYTES_MAX);
    } else {
        fs::read_dir(&path).with_context(|| format!("--path {}: cannot be read", path.display()))?;
        corpus.take_folder(&path, FILE_BYTES_MAX, FILES_MAX, 0);
    }
    corpus.note_source("the given path", &path, 0);
    Ok(corpus)
}

fn walk_default() -> Corpus {
    let mut corpus = Corpus::default();
    if let Some(checkout) = checkout() {
        corpus.take_folder(&checkout, FILE_BYTES_MAX, FILES_MAX, 0);
        corpus.note_source("this project", &checkout, 0);
    }
    let skipped = corpus.skipped; // of the others we take as many as we want, and nobody misses the rest
    for index in cargo_registry().iter().flat_map(|registry| folders_of(registry)) {
        let before = corpus.files.len();
        for dependency in folders_of(&index) {
            let limit = FILES_DEFAULT.min(corpus.files.len() + FILES_PER_DEPENDENCY);
            if corpus.files.len() < limit {
                corpus.consider(&dependency.join("README.md"), FILL_BYTES_MAX);
            }
            corpus.take_folder(&dependency.join("src"), FILL_BYTES_MAX, limit, 0);
        }
        corpus.note_source("its dependencies", &index, before);
    }
    for (what, folder) in [("licences", "/usr/share/common-licenses"), ("documentation", "/usr/share/doc")] {
        let before = corpus.files.len();
        corpus.take_folder(Path::new(folder), FILL_BYTES_MAX, FILES_DEFAULT, 0);
        corpus.note_source(what, Path::new(folder), before);
    }
    corpus.skipped = skipped;
    corpus
}

/// The checkout of tenure that the current directory lies in.
fn checkout() -> Option<PathBuf> {
    let here = env::current_dir().ok()?;
    here.ancestors().find(|folder| folder.join("crates/tenure-cli/Cargo.toml").is_file()).map(Path::to_path_buf)
}

fn cargo_registry() -> Option<PathBuf> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")))?;
    Some(home.join("registry/src")).filter(|folder| folder.is_dir())
}

fn entries_of(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    entries.sort(); // the same files in the same order on every machine
    entries
}

fn folders_of(folder: &Path) -> Vec<PathBuf> {
    entries_of(folder).into_iter().filter(|entry| entry.is_dir()).collect()
}

enum Looked {
    Text,
    Binary,
    Large,
    Empty,
    Unreadable,
}

fn look_at(file: &Path, bytes_max: u64) -> Looked {
    let Ok(length) = fs::metadata(file).map(|metadata| metadata.len()) else { return Looked::Unreadable };
    if length == 0 {
        return Looked::Empty;
    }
    if length > bytes_max {
        return Looked::Large;
    }
    let mut begin = Vec::with_capacity(SNIFFED_BYTES);
    match fs::File::open(file).and_then(|file| file.take(SNIFFED_BYTES as u64).read_to_end(&mut begin)) {
        Err(_) => Looked::Unreadable,
        Ok(_) if is_text(&begin) => Looked::Text,
        Ok(_) => Looked::Binary,
    }
}

/// Text has no NUL and is UTF-8, apart from a character that the end of the sample cuts.
fn is_text(begin: &[u8]) -> bool {
    let utf8 = match std::str::from_utf8(begin) {
        Ok(_) => true,
        Err(error) => error.error_len().is_none(),
    };
    utf8 && !begin.contains(&0)
}

impl Corpus {
    /// Takes the text files below `folder` until there are `limit` files in all.
    fn take_folder(&mut self, folder: &Path, bytes_max: u64, limit: usize, depth: usize) {
        for entry in entries_of(folder) {
            if self.files.len() >= limit {
                self.skipped.over_limit = true;
                return;
            }
            // Links are not followed: they lead in circles and out of the folder.
            let Ok(kind) = fs::symlink_metadata(&entry).map(|metadata| metadata.file_type()) else { continue };
            let skipped = entry.file_name().is_some_and(|name| SKIPPED_FOLDERS.iter().any(|skipped| name == *skipped));
            if kind.is_dir() && !skipped && depth < DEPTH_MAX {
                self.take_folder(&entry, bytes_max, limit, depth + 1);
            } else if kind.is_file() {
                self.consider(&entry, bytes_max);
            }
        }
    }

    fn consider(&mut self, file: &Path, bytes_max: u64) {
        match look_at(file, bytes_max) {
            Looked::Text => self.files.push(file.to_path_buf()),
            Looked::Binary => self.skipped.binary += 1,
            Looked::Large => self.skipped.large += 1,
            Looked::Empty => self.skipped.empty += 1,
            Looked::Unreadable => self.skipped.unreadable += 1,
        }
    }

    fn note_source(&mut self, what: &'static str, folder: &Path, files_before: usize) {
        let files = self.files.len() - files_before;
        if files > 0 {
            self.sources.push(Source { what, folder: folder.to_path_buf(), files });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &[u8])]) -> Self {
            let root = env::temp_dir().join(format!("tenure-demo-walk-{}-{name}", std::process::id()));
            for (path, content) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, content).unwrap();
            }
            Folder(root)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn text_is_taken_and_the_rest_is_counted() {
        let large = vec![b'a'; FILE_BYTES_MAX as usize + 1];
        let folder = Folder::new(
            "mixed",
            &[
                ("b/two.md", b"# two"),
                ("a.txt", "grün".as_bytes()),
                ("empty.txt", b""),
                ("photo.jpg", b"\xff\xd8\0\0"),
                ("latin1.txt", b"gr\xfcn und mehr"),
                ("large.txt", &large),
                (".git/config", b"no"),
                ("target/debug/x.d", b"no"),
                ("web/node_modules/m/index.js", b"no"),
            ],
        );
        let corpus = walk(Some(&folder.0)).unwrap();
        let root = folder.0.canonicalize().unwrap();
        assert_eq!(corpus.files, [root.join("a.txt"), root.join("b/two.md")]);
        let expected = Skipped { binary: 2, large: 1, empty: 1, unreadable: 0, over_limit: false };
        assert_eq!(corpus.skipped, expected);
        assert_eq!(corpus.sources[0].files, 2);
    }

    #[test]
    fn one_file_is_a_corpus_too() {
        let folder = Folder::new("one", &[("only.txt", b"only")]);
        assert_eq!(walk(Some(&folder.0.join("only.txt"))).unwrap().files.len(), 1);
    }

    #[test]
    fn a_path_without_text_is_refused_with_the_way_out() {
        let folder = Folder::new("blank", &[("empty.txt", b"")]);
        let error = walk(Some(&folder.0)).unwrap_err().to_string();
        assert!(error.contains("--path DIR"), "{error}");
        let error = format!("{:#}", walk(Some(&folder.0.join("missing"))).unwrap_err());
        assert!(error.contains("missing: cannot be opened"), "{error}");
    }

    #[test]
    fn a_character_cut_by_the_sample_is_still_text() {
        assert!(is_text(&"grün".as_bytes()[..3]));
        assert!(!is_text(b"gr\xfcn"));
        assert!(!is_text(b"a\0b"));
    }

    #[test]
    fn the_default_finds_enough_files_here() {
        let corpus = walk(None).unwrap();
        assert!(corpus.files.len() >= 300, "{} files from {:?}", corpus.files.len(), corpus.sources);
        assert!(corpus.sources[0].what == "this project");
    }
}
