//! How handlers report when they started and ended: by a thread and a session of their own, so that neither a handler that
//! blocks the runtime nor a database that is away for a moment changes what a test sees.

use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot};
use tokio_postgres::NoTls;
use tokio_postgres::types::ToSql;

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

async fn write_all(url: String, mut receive: mpsc::UnboundedReceiver<(Report, oneshot::Sender<()>)>) {
    let mut session = None;
    while let Some((report, done)) = receive.recv().await {
        while !written(&mut session, &url, &report).await {
            session = None;
            // sleep: the database may be away, and it is not asked without a pause.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let _ = done.send(());
    }
}

/// Writes one report; false when the session is gone and another one may do.
async fn written(session: &mut Option<tokio_postgres::Client>, url: &str, report: &Report) -> bool {
    if session.is_none() {
        *session = connect(url).await;
    }
    let Some(sql) = session else { return false };
    let result = match report {
        Report::Started { run, job, attempt, fence, worker, key, at } => {
            let pid = std::process::id() as i32;
            // With its key, so that one whose answer was lost is not written twice.
            let start = "insert into probe (run_key, job_id, attempt, fence, pid, worker, key, started_at)
                values ($1, $2, $3, $4, $5, $6, $7, clock_timestamp() - $8 * interval '1 microsecond') on conflict (run_key) do nothing";
            let ago = microseconds_since(*at);
            let params: [&(dyn ToSql + Sync); 8] = [run, job, attempt, fence, &pid, worker, key, &ago];
            sql.execute(start, &params).await
        }
        Report::Ended { run, outcome, at } => {
            let end = "update probe set finished_at = clock_timestamp() - $3 * interval '1 microsecond', outcome = $2 where run_key = $1";
            sql.execute(end, &[run, outcome, &microseconds_since(*at)]).await
        }
        Report::Flush => return true,
    };
    if let Err(e) = &result
        && !sql.is_closed()
    {
        eprintln!("report {report:?}: {e:?}");
    }
    result.is_ok()
}

fn microseconds_since(at: Instant) -> f64 {
    at.elapsed().as_micros() as f64
}

async fn connect(url: &str) -> Option<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}
