//! How handlers report when they started and ended: by a thread and a session of their own, so that neither a handler that
//! blocks the runtime nor a database that is away for a moment changes what a test sees.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::{NoTls, Statement};

/// Reports in one transaction, at most.
const TOGETHER_MAX: usize = 100;

/// Where reports go; a copy for everybody who reports.
#[derive(Clone, Debug)]
pub struct Reports {
    send: mpsc::UnboundedSender<(Report, oneshot::Sender<()>)>,
}

/// What is reported, and the instant of it.
#[derive(Debug)]
enum Report {
    Started {
        run: i64,
        job: i64,
        attempt: i32,
        fence: i64,
        worker: String,
        key: String,
        at: Instant,
    },
    Ended {
        run: i64,
        outcome: &'static str,
        at: Instant,
    },
    /// Nothing; answered when all before it is written.
    Flush,
}

impl Reports {
    /// Starts the thread; reports go to the database of this URL.
    pub fn start(url: &str) -> Reports {
        let (send, receive) = mpsc::unbounded_channel();
        let url = url.to_owned();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(write_all(url, receive));
        });
        Reports { send }
    }

    /// A handler starts. Returns when that is written.
    pub async fn started(&self, run: i64, ctx: &tenure::Context, worker: &str) {
        let report = Report::Started {
            run,
            job: i64::from(ctx.job_id()),
            attempt: i32::from(ctx.attempt()),
            fence: ctx.fence(),
            worker: worker.to_owned(),
            key: ctx.idempotency_key().to_owned(),
            at: Instant::now(),
        };
        let _ = self.report(report).await;
    }

    /// A handler ends, or was dropped. The answer comes when that is written; nobody has to wait for it.
    pub fn ended(&self, run: i64, outcome: &'static str) -> oneshot::Receiver<()> {
        self.report(Report::Ended { run, outcome, at: Instant::now() })
    }

    /// Waits until everything so far is written.
    pub async fn flush(&self) {
        let _ = self.report(Report::Flush).await;
    }

    fn report(&self, report: Report) -> oneshot::Receiver<()> {
        let (done, written) = oneshot::channel();
        let _ = self.send.send((report, done));
        written
    }
}

/// What waited while the last ones were written is written together, so that no handler holds its slot for the sake of being watched.
async fn write_all(url: String, mut receive: mpsc::UnboundedReceiver<(Report, oneshot::Sender<()>)>) {
    let mut session = None;
    let mut waiting = Vec::new();
    while receive.recv_many(&mut waiting, TOGETHER_MAX).await > 0 {
        while !written(&mut session, &url, &waiting).await {
            session = None;
            // sleep: the database may be away, and it is not asked without a pause.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        for (_, done) in waiting.drain(..) {
            let _ = done.send(());
        }
    }
}

/// A session, and what is said in it.
struct Writer {
    sql: tokio_postgres::Client,
    start: Statement,
    end: Statement,
}

impl Writer {
    async fn connect(url: &str) -> Option<Writer> {
        let (sql, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
        tokio::spawn(connection);
        // With its key, so that one whose answer was lost is not written twice.
        let start = "insert into probe (run_key, job_id, attempt, fence, pid, worker, key, started_at)
            values ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() - $8 * interval '1 microsecond') on conflict (run_key) do nothing";
        let end = "update probe set finished_at = clock_timestamp() - $3 * interval '1 microsecond', outcome = $2 where run_key = $1";
        let (start, end) = (sql.prepare(start).await.ok()?, sql.prepare(end).await.ok()?);
        Some(Writer { sql, start, end })
    }

    /// All or none.
    async fn write(&mut self, reports: &[(Report, oneshot::Sender<()>)]) -> Result<(), tokio_postgres::Error> {
        let tx = self.sql.transaction().await?;
        for (report, _) in reports {
            match report {
                Report::Started { run, job, attempt, fence, worker, key, at } => {
                    let (pid, ago) = (std::process::id() as i32, microseconds_since(*at));
                    tx.execute(&self.start, &[run, job, attempt, fence, &pid, worker, key, &ago]).await?;
                }
                Report::Ended { run, outcome, at } => {
                    tx.execute(&self.end, &[run, outcome, &microseconds_since(*at)]).await?;
                }
                Report::Flush => {}
            }
        }
        tx.commit().await
    }
}

/// Writes them; false when the session is gone and another one may do.
async fn written(session: &mut Option<Writer>, url: &str, reports: &[(Report, oneshot::Sender<()>)]) -> bool {
    if reports.iter().all(|(report, _)| matches!(report, Report::Flush)) {
        return true;
    }
    if session.is_none() {
        *session = Writer::connect(url).await;
    }
    let Some(writer) = session else { return false };
    let result = writer.write(reports).await;
    if let Err(e) = &result
        && !writer.sql.is_closed()
    {
        eprintln!("reports {:?}: {e:?}", reports.iter().map(|(report, _)| report).collect::<Vec<_>>());
    }
    result.is_ok()
}

fn microseconds_since(at: Instant) -> f64 {
    at.elapsed().as_micros() as f64
}
