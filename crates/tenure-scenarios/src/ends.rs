//! Ways in which a handler kills its own process, and the limits that make them harmless to the machine.

use std::fs::File;
use std::hint::black_box;
use std::io::{self, Write};

use crate::memory_group::MemoryGroup;
use crate::process::WorkerOptions;

/// Bytes that are taken, or written, at a time.
const CHUNK: usize = 1 << 20;

/// Sets the limits of this process. One that is to be killed leaves no image of its memory behind.
///
/// # Panics
/// When the system refuses.
pub(crate) fn limit(options: &WorkerOptions) {
    if let Some(group) = &options.memory_group {
        MemoryGroup::join(group).expect("the memory group takes this process");
    }
    let limits = [(libc::RLIMIT_AS, options.address_space), (libc::RLIMIT_FSIZE, options.file_size)];
    for (what, most) in
        limits.into_iter().filter_map(|(what, most)| Some((what, most?))).chain([(libc::RLIMIT_CORE, 0)])
    {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a plain system call that reads one value of ours.
        let set = unsafe { libc::setrlimit(what, &limit) };
        assert_eq!(set, 0, "a limit of {most}: {}", io::Error::last_os_error());
    }
}

/// Calls itself until the guard page below the stack ends the process.
#[inline(never)]
pub(crate) fn overflow_stack(depth: u64) -> u64 {
    let frame = black_box([depth; 128]);
    if depth == u64::MAX {
        return frame[0];
    }
    overflow_stack(depth + 1).wrapping_add(black_box(&frame)[1])
}

/// Takes address space until the allocator has none, which ends the process. Nothing is written to it, so that the machine
/// keeps its memory.
pub(crate) fn take_memory() -> ! {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    loop {
        taken.push(black_box(Vec::with_capacity(CHUNK)));
    }
}

/// Fills memory until the kernel ends the process for it: [`WorkerOptions::memory_group`] says when.
pub(crate) fn fill_memory() -> ! {
    let mut filled: Vec<Vec<u8>> = Vec::new();
    loop {
        filled.push(black_box(vec![b'x'; CHUNK]));
    }
}

/// Writes until the system ends the process for it (SIGXFSZ). The file has no name any more, and goes with the process.
/// Returns when the system only refuses.
pub(crate) fn fill_file() -> io::Error {
    let path = std::env::temp_dir().join(format!("tenure-fill-{}-{:x}", std::process::id(), fastrand::u32(..)));
    let chunk = vec![b'x'; CHUNK];
    let fill = || {
        let mut file = File::create_new(&path)?;
        std::fs::remove_file(&path)?;
        loop {
            file.write_all(&chunk)?;
        }
    };
    let filled: io::Result<std::convert::Infallible> = fill();
    match filled {
        Err(error) => error,
        Ok(never) => match never {},
    }
}
