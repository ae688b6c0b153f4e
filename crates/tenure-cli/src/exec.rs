//! A program as a job's handler: the payload on its stdin, facts in its environment, the result on its stdout, the
//! verdict in its exit code. Its whole process group ends with it.

use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::json;
use tenure::{Cause, Context, Fail, RawJson, limits};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, Command};

/// What is kept of the end of stderr, and of stdout that is no JSON.
const END_BYTES: usize = 8 * 1024;
/// After the program has ended, its pipes are read for at most this long: somebody else may hold them.
const PIPES_AFTER_END: Duration = Duration::from_secs(1);

/// How often a group that has to stop is looked at.
const GROUP_LOOK: Duration = Duration::from_millis(20);

/// Until a program is tried again that could not be started for now, half as much again at most.
const START_AGAIN: Duration = Duration::from_secs(5);
/// For so long its slot is kept first: a machine that is short of something is not asked for the next one at once. Less than a
/// program may be given to run.
const START_PAUSE: Duration = Duration::from_millis(100);

/// `EX_DATAERR` of sysexits.h: it will never work. Every other code is a retry, `EX_TEMPFAIL` (75) among them.
const EXIT_PERMANENT: i32 = 65;
/// The provider said that it is too much: how long to wait stands on the last line of stderr, `Retry-After: 30`.
const EXIT_THROTTLED: i32 = 79;
/// For a program that does not say how long.
const THROTTLED_WAIT: Duration = Duration::from_secs(10);
/// What the shell says of a command that cannot be executed, and of one that does not exist.
const EXIT_NOT_EXECUTABLE: i32 = 126;
const EXIT_NOT_FOUND: i32 = 127;

/// Runs `sh -c command` for one job.
pub async fn run(command: &str, ctx: Context, payload: RawJson) -> Result<Option<RawJson>, Fail> {
    let mut child = match spawn(command, &ctx) {
        Ok(child) => child,
        Err(error) if is_passing(&error) => return Err(start_again(&error, &ctx).await),
        Err(error) => {
            ctx.refuse_kind(&format!("sh cannot be started: {error}"));
            return Err(error.into());
        }
    };
    // Dropped at the end of the job, however it ends: also at a timeout, when this future is simply dropped.
    let group = Group { leader: child.id() };
    let stdin = child.stdin.take();
    let feed = async {
        if let Some(mut stdin) = stdin {
            // A program that does not read its payload may end before it is written.
            let _ = stdin.write_all(payload.get().as_bytes()).await;
        }
    };
    let mut out = Captured::all(child.stdout.take());
    let mut err = LastWords { ctx: &ctx, err: Captured::end(child.stderr.take()) };
    let status = {
        let reading = async { tokio::join!(feed, out.read(), err.err.read()) };
        tokio::pin!(reading);
        tokio::select! {
            status = ended(&mut child, &ctx, &group) => {
                let status = status?;
                drop(group);
                let _ = tokio::time::timeout(PIPES_AFTER_END, reading).await;
                status
            }
            // All pipes are closed: what is left is to wait for the end.
            _ = &mut reading => {
                let status = ended(&mut child, &ctx, &group).await?;
                drop(group);
                status
            }
        }
    };
    // From here on the group's number may belong to somebody else: it is signalled no more.
    judge(command, &ctx, status, &out, &err.err).await
}

fn spawn(command: &str, ctx: &Context) -> std::io::Result<Child> {
    Command::new("sh")
        .arg("-c")
        .arg(command)
        .env("TENURE_JOB_ID", ctx.job_id().to_string())
        .env("TENURE_KIND", ctx.kind())
        .env("TENURE_QUEUE", ctx.queue())
        .env("TENURE_ATTEMPT", ctx.attempt().to_string())
        .env("TENURE_MAX_ATTEMPTS", ctx.max_attempts().to_string())
        .env("TENURE_IDEMPOTENCY_KEY", ctx.idempotency_key())
        .env("TENURE_FENCE", ctx.fence().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
}

/// The machine is short of processes, memory or files, or somebody is just replacing the shell.
fn is_passing(error: &std::io::Error) -> bool {
    let passing = [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE, libc::EINTR, libc::ETXTBSY];
    error.raw_os_error().is_some_and(|code| passing.contains(&code))
}

/// No attempt is used: the program had none.
async fn start_again(error: &std::io::Error, ctx: &Context) -> Fail {
    let wait = START_AGAIN.mul_f64(1.0 + fastrand::f64() / 2.0);
    tracing::warn!(job = %ctx.job_id(), kind = ctx.kind(), %error, ?wait, "sh cannot be started now, trying again");
    tokio::select! {
        // sleep: see the constant.
        () = tokio::time::sleep(START_PAUSE) => {}
        _ = ctx.cancelled() => {}
    }
    Fail::snooze(wait)
}

/// Waits for the program; passes the wish to stop on as SIGTERM to its group.
async fn ended(child: &mut Child, ctx: &Context, group: &Group) -> std::io::Result<ExitStatus> {
    tokio::select! {
        status = child.wait() => return status,
        _ = ctx.cancelled() => {
            group.signal(libc::SIGTERM);
        }
    }
    // The worker aborts us when its patience ends. The shell that stands before a program goes at once, and the program has that time all the same.
    let status = child.wait().await;
    group.until_empty().await;
    status
}

/// Keeps the end of stderr with the attempt however it ends: at a timeout the program and this future are gone, and what it
/// said last is the best hint at what it was waiting for.
struct LastWords<'a> {
    ctx: &'a Context,
    err: Captured<ChildStderr>,
}

impl Drop for LastWords<'_> {
    fn drop(&mut self) {
        let text = self.err.end_text();
        if !text.is_empty() {
            self.ctx.detail("stderr", text);
        }
    }
}

/// The processes that a command started.
struct Group {
    leader: Option<u32>,
}

impl Group {
    /// True: somebody is in it.
    fn signal(&self, signal: i32) -> bool {
        let Some(leader) = self.leader.and_then(|leader| i32::try_from(leader).ok()).filter(|leader| *leader > 1)
        else {
            return false;
        };
        // SAFETY: kill has no memory to be unsafe with; the group is our child's own, made with process_group(0).
        unsafe { libc::kill(-leader, signal) == 0 }
    }

    async fn until_empty(&self) {
        while self.signal(0) {
            // sleep: the end of a process that is not our child is told to nobody.
            tokio::time::sleep(GROUP_LOOK).await;
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(libc::SIGKILL);
    }
}

/// What a program wrote: all of it up to the largest result, or the end of it.
struct Captured<R> {
    pipe: Option<R>,
    kept: Vec<u8>,
    all: bool,
    /// More was written than was kept.
    cut: bool,
}

impl<R: AsyncRead + Unpin> Captured<R> {
    fn all(pipe: Option<R>) -> Self {
        Captured { pipe, kept: Vec::new(), all: true, cut: false }
    }

    fn end(pipe: Option<R>) -> Self {
        Captured { pipe, kept: Vec::new(), all: false, cut: false }
    }

    async fn read(&mut self) {
        let Some(mut pipe) = self.pipe.take() else { return };
        let mut piece = vec![0; 8 * 1024];
        while let Ok(read @ 1..) = pipe.read(&mut piece).await {
            self.keep(&piece[..read]);
        }
    }

    fn keep(&mut self, piece: &[u8]) {
        self.kept.extend_from_slice(piece);
        if self.all && self.kept.len() > limits::RESULT_BYTES_MAX {
            self.all = false; // No result any more, only a text whose end is kept.
        }
        if !self.all && self.kept.len() > END_BYTES {
            self.kept.drain(..self.kept.len() - END_BYTES);
            self.cut = true;
        }
    }

    /// The end of what was written, as text.
    fn end_text(&self) -> String {
        let start = self.kept.len().saturating_sub(END_BYTES);
        let text = String::from_utf8_lossy(&self.kept[start..]);
        let mark = if self.cut || start > 0 { "… " } else { "" };
        format!("{mark}{}", text.trim_end())
    }

    fn last_line(&self) -> Option<String> {
        let text = self.end_text();
        let line = text.lines().rev().find(|line| !line.trim().is_empty())?;
        Some(line.trim().chars().take(300).collect())
    }
}

async fn judge<R: AsyncRead + Unpin, S: AsyncRead + Unpin>(
    command: &str,
    ctx: &Context,
    status: ExitStatus,
    out: &Captured<R>,
    err: &Captured<S>,
) -> Result<Option<RawJson>, Fail> {
    if status.success() {
        return Ok(result_of(ctx, out).await);
    }
    let fail = match (status.code(), signal_of(status)) {
        (Some(EXIT_NOT_EXECUTABLE | EXIT_NOT_FOUND), _) => {
            let why = err.last_line().unwrap_or_else(|| format!("the shell cannot run {command:?}"));
            ctx.refuse_kind(&format!("{why}; check --exec {}={command}", ctx.kind()));
            Fail::retry(why)
        }
        (_, Some(signal)) => {
            Fail::retry(describe_signal(signal)).cause(Cause::Signal).detail("signal", signal_name(signal))
        }
        (Some(EXIT_THROTTLED), None) => {
            Fail::throttled_by(err.last_line().as_deref().and_then(retry_after).unwrap_or(THROTTLED_WAIT))
        }
        (code, None) => {
            let code = code.unwrap_or_default();
            let said = err.last_line().map(|line| format!(": {line}")).unwrap_or_default();
            let text = format!("the program ended with exit code {code}{said}");
            let fail = if code == EXIT_PERMANENT { Fail::permanent(text) } else { Fail::retry(text) };
            fail.cause(Cause::Exit).detail("exit_code", code)
        }
    };
    let stdout = out.end_text();
    Err(if stdout.is_empty() { fail } else { fail.detail("stdout", stdout) })
}

/// "Retry-After: 30", in seconds, as a provider's answer says it.
fn retry_after(line: &str) -> Option<Duration> {
    let (name, value) = line.split_once(':')?;
    let is_it = name.trim().eq_ignore_ascii_case("retry-after");
    is_it.then(|| value.trim().parse().ok()).flatten().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
}

/// JSON is the result. Other text leaves none; its end is kept as the job's progress, and so is that of JSON that is too much for a result.
async fn result_of<R: AsyncRead + Unpin>(ctx: &Context, out: &Captured<R>) -> Option<RawJson> {
    let text = String::from_utf8_lossy(&out.kept);
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    let whole = if out.cut { None } else { RawJson::parse(text).ok() };
    if whole.is_none() {
        let mut said = json!({ "stdout": out.end_text().replace('\0', "\u{fffd}") });
        if out.cut {
            let why = format!("no result: the program wrote more than {} bytes", limits::RESULT_BYTES_MAX);
            tracing::warn!(job = %ctx.job_id(), kind = ctx.kind(), "{why}");
            said["result"] = why.into();
        }
        let kept = ctx.progress(&said).await;
        match kept {
            Ok(()) => {}
            // The program may have ended the job itself, as it may by its fence. If not, the report of its end is refused, which says so.
            Err(error) if error.code() == tenure::ErrorCode::LeaseLost => {
                tracing::debug!(job = %ctx.job_id(), %error, "the end of the program's output is not kept");
            }
            Err(error) => {
                tracing::warn!(job = %ctx.job_id(), %error, "the end of the program's output could not be kept");
            }
        }
    }
    whole
}

/// The signal that ended the program, or, when a shell stood in between, the one that it reports as 128 + n.
fn signal_of(status: ExitStatus) -> Option<i32> {
    let by_shell =
        status.code().map(|code| code - 128).filter(|signal| NAMED_SIGNALS.iter().any(|(known, _)| known == signal));
    status.signal().or(by_shell)
}

const NAMED_SIGNALS: [(i32, &str); 11] = [
    (libc::SIGHUP, "SIGHUP"),
    (libc::SIGINT, "SIGINT"),
    (libc::SIGQUIT, "SIGQUIT"),
    (libc::SIGILL, "SIGILL"),
    (libc::SIGABRT, "SIGABRT"),
    (libc::SIGBUS, "SIGBUS"),
    (libc::SIGFPE, "SIGFPE"),
    (libc::SIGKILL, "SIGKILL"),
    (libc::SIGSEGV, "SIGSEGV"),
    (libc::SIGPIPE, "SIGPIPE"),
    (libc::SIGTERM, "SIGTERM"),
];

fn signal_name(signal: i32) -> String {
    let known = NAMED_SIGNALS.iter().find(|(number, _)| *number == signal);
    known.map_or_else(|| format!("signal {signal}"), |(_, name)| (*name).to_owned())
}

fn describe_signal(signal: i32) -> String {
    let hint = match signal {
        libc::SIGKILL => " (out of memory? see `dmesg`)",
        libc::SIGSEGV | libc::SIGBUS | libc::SIGILL => " (the program crashed)",
        libc::SIGABRT => " (the program aborted)",
        _ => "",
    };
    format!("the program was ended by {}{hint}", signal_name(signal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_named_also_when_a_shell_reports_them() {
        let check =
            |raw: i32, expected: Option<i32>| assert_eq!(signal_of(ExitStatus::from_raw(raw)), expected, "{raw}");
        check(9, Some(9));
        check((128 + 9) << 8, Some(9));
        check(3 << 8, None);
        check(255 << 8, None);
        assert_eq!(describe_signal(9), "the program was ended by SIGKILL (out of memory? see `dmesg`)");
        assert_eq!(signal_name(64), "signal 64");
    }

    #[test]
    fn how_long_to_wait_is_read_from_the_last_line() {
        assert_eq!(retry_after("Retry-After: 30"), Some(Duration::from_secs(30)));
        assert_eq!(retry_after(" retry-after:1.5 "), Some(Duration::from_millis(1_500)));
        for line in ["", "30", "Retry-After:", "Retry-After: -1", "Retry-After: soon"] {
            assert_eq!(retry_after(line), None, "{line}");
        }
    }

    #[test]
    fn a_shell_that_is_not_there_is_not_waited_for() {
        let check = |code: i32, expected: bool| {
            assert_eq!(is_passing(&std::io::Error::from_raw_os_error(code)), expected, "{code}");
        };
        [libc::EAGAIN, libc::ENOMEM, libc::EMFILE, libc::ENFILE].into_iter().for_each(|code| check(code, true));
        [libc::ENOENT, libc::EACCES, libc::ENOEXEC, libc::E2BIG].into_iter().for_each(|code| check(code, false));
        assert!(!is_passing(&std::io::Error::other("a command with a NUL")));
    }

    #[tokio::test]
    async fn the_end_of_long_output_is_kept() {
        let long = [vec![b'a'; 20_000], b"\xff last words\n".to_vec()].concat();
        let mut end = Captured::end(Some(&long[..]));
        end.read().await;
        assert!(end.end_text().starts_with("… a") && end.end_text().ends_with("\u{fffd} last words"));
        let mut all = Captured::all(Some(&b"[1,2]\n"[..]));
        all.read().await;
        assert_eq!((all.kept.as_slice(), all.cut), (&b"[1,2]\n"[..], false));
    }
}
