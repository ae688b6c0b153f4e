//! What processes of this machine used: their CPU time and memory, from /proc.

use std::collections::HashMap;

/// CPU time of this process so far, user and system, in microseconds.
pub fn own_cpu_us() -> u64 {
    // SAFETY: the call writes into `usage`, which lives as long as the call.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let micros =
        |time: libc::timeval| time.tv_sec.unsigned_abs() * 1_000_000 + u64::from(time.tv_usec.unsigned_abs() as u32);
    micros(usage.ru_utime) + micros(usage.ru_stime)
}

/// The most memory that this process had resident, in MB (1,000,000 bytes); none where the system does not say.
pub fn own_peak_mb() -> Option<f64> {
    // Not from getrusage, whose figure also counts the parent's memory at the moment of the fork.
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kb: f64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kb * 1_024.0 / 1e6)
}

/// CPU time of each of these processes, in microseconds. Those that are gone are left out.
pub fn cpu_us(pids: impl IntoIterator<Item = i32>) -> HashMap<i32, f64> {
    pids.into_iter().filter_map(|pid| Some((pid, cpu_us_of(pid)?))).collect()
}

fn cpu_us_of(pid: i32) -> Option<f64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let ticks = ticks_of(&stat)?;
    // SAFETY: a plain system call.
    Some(ticks * 1e6 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64)
}

/// Fields 14 and 15; the second one, the name, may hold anything.
fn ticks_of(stat: &str) -> Option<f64> {
    let mut times = stat.rsplit(')').next()?.split_whitespace().skip(11).map(str::parse::<f64>);
    Some(times.next()?.ok()? + times.next()?.ok()?)
}

/// Is this number, of a session of ours that the server named, the same process here? In a container, or on another machine,
/// it is nobody, or somebody else. A session's title holds the client's port, or says that it came by the socket.
pub fn is_our_session(pid: i32, client_port: Option<i32>) -> bool {
    let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    is_title_of(&String::from_utf8_lossy(&title), client_port)
}

fn is_title_of(title: &str, client_port: Option<i32>) -> bool {
    let end = client_port.map_or_else(|| "[local]".to_owned(), |port| format!("({port})"));
    title.starts_with("postgres") && title.contains(&end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_times_are_read_behind_any_name() {
        assert_eq!(ticks_of("7 (a) b) S 1 7 7 0 -1 4194304 9 0 0 0 250 50 0 0 20 0 1 0 5 6 7"), Some(300.0));
        assert_eq!(ticks_of("7 (a) S 1"), None);
        assert!(own_cpu_us() > 0);
    }

    #[test]
    fn only_a_process_with_our_port_in_its_title_is_our_session() {
        let check = |title, port, expected| assert_eq!(is_title_of(title, port), expected, "{title}");
        check("postgres: tenure tenure 127.0.0.1(4242) SELECT", Some(4242), true);
        check("postgres: main: tenure tenure 127.0.0.1(4242) idle", Some(4242), true);
        check("postgres: tenure tenure 127.0.0.1(4242) idle", Some(424), false);
        check("postgres: tenure tenure [local] idle", None, true);
        check("sh -c psql (4242)", Some(4242), false);
        check("", Some(4242), false);
    }
}
