//! A control group of the system that ends processes which take too much memory, as containers have one.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A group with a limit of memory. The kernel kills (SIGKILL) what takes more; on drop the group goes.
pub struct MemoryGroup(PathBuf);

impl MemoryGroup {
    /// A group whose processes may have so many bytes together.
    ///
    /// # Errors
    /// Where there are no such groups, or this user may make none: mostly only root may.
    pub fn new(bytes: u64) -> io::Result<MemoryGroup> {
        // The first as in version 2 of the interface, the second as in version 1 (kernel documentation, cgroup-v2 and memory).
        let (parent, limits) = if Path::new("/sys/fs/cgroup/memory").is_dir() {
            ("/sys/fs/cgroup/memory", [("memory.limit_in_bytes", bytes), ("memory.memsw.limit_in_bytes", bytes)])
        } else {
            ("/sys/fs/cgroup", [("memory.max", bytes), ("memory.swap.max", 0)])
        };
        let group = Path::new(parent).join(format!("tenure-{}-{:x}", std::process::id(), fastrand::u64(..)));
        fs::create_dir(&group)?;
        let group = MemoryGroup(group);
        let [(memory, most), (swap, most_swap)] = limits;
        fs::write(group.0.join(memory), most.to_string())?;
        // Not every kernel counts swap: then there is none to be had, or it delays the end only.
        fs::write(group.0.join(swap), most_swap.to_string()).ok();
        Ok(group)
    }

    /// Where the group is; [`join`](Self::join) takes it.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Puts this process into a group.
    pub(crate) fn join(group: &Path) -> io::Result<()> {
        fs::write(group.join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        // Refused as long as one of its processes runs; it is empty and costs nothing.
        fs::remove_dir(&self.0).ok();
    }
}
