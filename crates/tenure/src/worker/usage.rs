//! What this process has used of its machine, where the system tells: Linux, from /proc and from the control group (version 2).

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// Where the system keeps what it knows of this process.
pub(super) struct Usage {
    group: Option<PathBuf>,
}

impl Usage {
    pub(super) fn of_this_process() -> Usage {
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        Usage { group: group_of(&groups).map(|path| PathBuf::from(format!("/sys/fs/cgroup{path}"))) }
    }

    /// The most memory that the process ever had resident.
    pub(super) fn peak_memory(&self) -> Option<u64> {
        peak_of_status(&fs::read_to_string("/proc/self/status").ok()?)
    }

    /// The most memory that its control group ever had.
    pub(super) fn peak_group_memory(&self) -> Option<u64> {
        self.read("memory.peak")?.trim().parse().ok()
    }

    /// For how long the control group had to wait for CPU, since it was made.
    pub(super) fn throttled(&self) -> Option<Duration> {
        throttled_of(&self.read("cpu.stat")?)
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.group.as_ref()?.join(file)).ok()
    }
}

/// The path of the group of version 2; inside of a container mostly `/`.
fn group_of(groups: &str) -> Option<&str> {
    groups.lines().find_map(|line| line.strip_prefix("0::")).map(|path| if path == "/" { "" } else { path })
}

fn peak_of_status(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()? * 1024)
}

fn throttled_of(stat: &str) -> Option<Duration> {
    let micros = stat.lines().find_map(|line| line.strip_prefix("throttled_usec "))?;
    Some(Duration::from_micros(micros.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_writes_is_read() {
        assert_eq!(peak_of_status("Name:\tx\nVmHWM:\t    5120 kB\nVmRSS:\t 4 kB\n"), Some(5120 * 1024));
        assert_eq!(peak_of_status("Name:\tx\n"), None);
        assert_eq!(throttled_of("usage_usec 7\nthrottled_usec 2500\n"), Some(Duration::from_micros(2500)));
        assert_eq!(throttled_of("usage_usec 7\n"), None);
        assert_eq!(group_of("0::/\n"), Some(""));
        assert_eq!(group_of("1:cpu:/x\n0::/a.slice/b\n"), Some("/a.slice/b"));
        assert_eq!(group_of("1:cpu:/x\n"), None);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn this_process_has_used_some_memory() {
        assert!(Usage::of_this_process().peak_memory().expect("Linux tells") > 100_000);
    }
}
