//! The worker process of the scenarios: one handler that does what the payload says.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tenure::{
    Client, Context, Enqueue, Fail, Job, JobId, KindOptions, RawJson, RetryPolicy, RunningWorker, Worker, WorkerBuilder,
};
use tokio::sync::Semaphore;
use tokio_postgres::NoTls;

use crate::act::{Act, FailText, PanicHow};
use crate::ends;
use crate::process::WorkerOptions;
use crate::reports::Reports;

/// Runs the worker until SIGTERM; the exit code: 0 after a clean stop, 1 otherwise.
pub fn run(options: WorkerOptions) -> i32 {
    ends::limit(&options);
    tracing_subscriber::fmt()
        .with_env_filter(std::env::var("TENURE_LOG").unwrap_or_else(|_| "info".into()))
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(options.threads).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let code = runtime.block_on(work(options));
    // Handlers that block their thread and ignore their cancellation do not hold the process.
    runtime.shutdown_background();
    code.unwrap_or_else(|e| {
        eprintln!("worker failed: {e:#}");
        1
    })
}

async fn work(options: WorkerOptions) -> anyhow::Result<i32> {
    let hands = Arc::new(Hands::new(&options).await?);
    let mut workers = Vec::new();
    for n in 0..options.workers {
        let name = if n == 0 { options.name.clone() } else { format!("{}-{n}", options.name) };
        workers.push(worker(&options, &name, &hands).start().await?);
    }
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    terminate.recv().await;
    let mut clean = true;
    workers.iter().for_each(RunningWorker::shutdown);
    for mut running in workers {
        let summary = tokio::select! {
            summary = running.join() => Some(summary),
            _ = terminate.recv() => None,
        };
        let summary = match summary {
            Some(summary) => summary,
            None => {
                running.abort();
                running.join().await
            }
        };
        clean &= summary.clean;
    }
    hands.reports.flush().await;
    Ok(i32::from(!clean))
}

/// A worker as the options say, under this name.
fn worker(options: &WorkerOptions, name: &str, hands: &Arc<Hands>) -> WorkerBuilder {
    let mut worker = Worker::builder(&options.url)
        .name(name)
        .lease(options.lease)
        .shutdown_grace(options.shutdown_grace)
        .pooler(options.pooler);
    if let Some(grace) = options.reconnect_grace {
        worker = worker.reconnect_grace(grace);
    }
    for (queue, concurrency) in &options.queues {
        worker = worker.queue(queue, *concurrency);
    }
    let mut kind_options = KindOptions::new();
    if let Some(delay) = options.retry_delay {
        kind_options = kind_options.retry(RetryPolicy::fixed(delay));
    }
    if let Some(timeout) = options.timeout {
        kind_options = kind_options.timeout(timeout);
    }
    for kind in &options.kinds {
        if kind == Nul::KIND {
            worker = worker.handle_with(kind_options.clone(), |_ctx, Nul {}| async {
                Ok(serde_json::json!({ "text": "a\0b", "k\0": 1 }))
            });
            continue;
        }
        if kind == NOOP_KIND {
            worker = worker.handle_raw(kind, kind_options.clone(), |_ctx, _payload| async { Ok(None) });
            continue;
        }
        if kind == ABORT_KIND {
            // Before anything else happens, even the report of its start.
            worker = worker.handle_raw(kind, kind_options.clone(), |_ctx, _payload| -> Never { std::process::abort() });
            continue;
        }
        let hands = hands.clone();
        worker = worker.handle_raw(kind, kind_options.clone(), move |ctx, payload| {
            let hands = hands.clone();
            async move { hands.run(ctx, payload).await }
        });
    }
    worker
}

/// A kind whose handler does nothing at all, and reports nothing.
pub const NOOP_KIND: &str = "noop";

/// A kind whose handler does nothing but abort its process.
pub const ABORT_KIND: &str = "abort";

type Never = std::future::Pending<Result<Option<RawJson>, Fail>>;

/// A job whose typed result holds U+0000, in a value and in a key.
#[derive(serde::Serialize, serde::Deserialize)]
struct Nul {}

impl Job for Nul {
    const KIND: &'static str = "nul";
}

/// What the handlers of one process share.
struct Hands {
    reports: Reports,
    url: String,
    name: String,
    /// Connections that all handlers share: the mistake that the engine must survive.
    pool: Semaphore,
    client: Client,
    mutex: Mutex<u64>,
    snoozed: Mutex<HashMap<JobId, u64>>,
    sessions: Mutex<Vec<tokio_postgres::Client>>,
}

impl Hands {
    async fn new(options: &WorkerOptions) -> anyhow::Result<Hands> {
        Ok(Hands {
            reports: Reports::start(&options.probe_url),
            url: options.probe_url.clone(),
            name: options.name.clone(),
            pool: Semaphore::new(options.pool),
            client: Client::builder(&options.probe_url).connect_lazy()?,
            mutex: Mutex::new(0),
            snoozed: Mutex::default(),
            sessions: Mutex::default(),
        })
    }

    /// Notes the start, acts, notes the end; also of a run that is dropped or panics.
    async fn run(self: Arc<Self>, ctx: Context, payload: RawJson) -> Result<Option<RawJson>, Fail> {
        let run = fastrand::i64(1..);
        // First, so that a run that is dropped while it reports its start has an end as well.
        let end = RunEnd { reports: self.reports.clone(), run, outcome: None };
        self.reports.started(run, &ctx, &self.name).await;
        let outcome = match ctx.kind() {
            "echo" => Ok(Some(payload)),
            _ => self.act(&ctx, serde_json::from_str(payload.get())?).await,
        };
        end.is(if outcome.is_ok() { "ok" } else { "failed" }).await;
        outcome
    }

    async fn act(&self, ctx: &Context, act: Act) -> Result<Option<RawJson>, Fail> {
        let null = Ok(None);
        match act {
            Act::Sleep { ms } => {
                tokio::select! {
                    () = pause(ms) => null,
                    _ = ctx.cancelled() => Err(Fail::cancelled()),
                }
            }
            Act::Stubborn { ms } => {
                let end = Instant::now() + Duration::from_millis(ms);
                while Instant::now() < end {
                    pause(20).await;
                }
                null
            }
            Act::Burn { ms } => {
                burn(ms);
                null
            }
            Act::Block { ms } => {
                // sleep: the work of a handler that blocks.
                std::thread::sleep(Duration::from_millis(ms));
                null
            }
            Act::Thread { ms } => {
                // sleep: the work of a handler that blocks, in a thread of its own.
                ctx.spawn_blocking(move || std::thread::sleep(Duration::from_millis(ms))).await;
                null
            }
            Act::Abort => std::process::abort(),
            Act::OverflowStack => Ok(Some(RawJson::of(&ends::overflow_stack(0))?)),
            Act::TakeMemory => ends::take_memory(),
            Act::FillMemory => ends::fill_memory(),
            Act::FillFile => Err(Fail::retry(ends::fill_file())),
            Act::FullDisk => {
                std::fs::write("/dev/full", "x")?;
                null
            }
            Act::Panic { how } => self.panic(ctx, how).await,
            Act::Fail { text } => Err(Fail::retry(failure(text))),
            Act::FailForGood { text } => Err(Fail::permanent(Plain(text))),
            Act::Snooze { ms } => Err(Fail::snooze(Duration::from_millis(ms))),
            Act::SnoozeThenFail { snoozes, failures } => {
                let mut snoozed = self.snoozed.lock().unwrap_or_else(PoisonError::into_inner);
                let snoozed = snoozed.entry(ctx.job_id()).or_default();
                if *snoozed < snoozes {
                    *snoozed += 1;
                    Err(Fail::snooze(Duration::ZERO))
                } else if ctx.attempt() <= failures {
                    Err(Fail::retry(Plain("this one really failed".into())))
                } else {
                    null
                }
            }
            Act::Effect { after_ms } => {
                pause(after_ms).await;
                self.effect(ctx).await?;
                null
            }
            Act::EffectOnce { after_ms, hold_ms } => {
                pause(after_ms).await;
                self.effect_once(ctx, hold_ms).await?;
                null
            }
            Act::EffectTwice { after_ms, hold_ms } => {
                pause(after_ms).await;
                self.effect_twice(ctx, hold_ms).await?;
                null
            }
            Act::EffectPlain { after_ms } => {
                pause(after_ms).await;
                let session = self.borrow().await?;
                plain(ctx, &session).await?;
                self.give_back(session);
                null
            }
            Act::Child { hold_ms } => {
                let _connection = self.pool.acquire().await.expect("the pool is never closed");
                pause(hold_ms).await;
                let child = Enqueue::raw("act", RawJson::of(&Act::Sleep { ms: 1 })?);
                self.client.enqueue(child.queue("children")).await?;
                null
            }
            Act::Return { bytes } => Ok(Some(RawJson::of(&"x".repeat(bytes))?)),
            Act::Progress { value, ms } => {
                ctx.progress(&value).await?;
                pause(ms).await;
                null
            }
            Act::FirstThen { first, then } => {
                let act = if ctx.attempt() == 1 { first } else { then };
                Box::pin(self.act(ctx, *act)).await
            }
            Act::Then { acts } => {
                let mut last = null;
                for act in acts {
                    last = Ok(Box::pin(self.act(ctx, act)).await?);
                }
                last
            }
        }
    }

    async fn effect(&self, ctx: &Context) -> Result<(), Fail> {
        let session = connect(&self.url).await?;
        let statement = "insert into effect (job_id, attempt) values ($1, $2)";
        session.execute(statement, &[&i64::from(ctx.job_id()), &i32::from(ctx.attempt())]).await?;
        Ok(())
    }

    async fn effect_once(&self, ctx: &Context, hold_ms: u64) -> Result<(), Fail> {
        let mut session = connect(&self.url).await?;
        let mut tx = session.transaction().await?;
        let statement = "insert into effect (job_id, attempt) values ($1, $2)";
        tx.execute(statement, &[&i64::from(ctx.job_id()), &i32::from(ctx.attempt())]).await?;
        ctx.complete_in(&mut tx, &"stored").await?;
        pause(hold_ms).await;
        tx.commit().await?;
        Ok(())
    }

    async fn effect_twice(&self, ctx: &Context, hold_ms: u64) -> Result<(), Fail> {
        let mut session = self.borrow().await?;
        plain(ctx, &session).await?;
        let mut tx = session.transaction().await?;
        let once = "insert into effect_once (job_id, fence) values ($1, $2)";
        tx.execute(once, &[&i64::from(ctx.job_id()), &ctx.fence()]).await?;
        ctx.complete_in(&mut tx, &"stored").await?;
        pause(hold_ms).await;
        tx.commit().await?;
        self.give_back(session);
        Ok(())
    }

    /// A session that another handler has used before, or a new one.
    async fn borrow(&self) -> Result<tokio_postgres::Client, Fail> {
        let idle = || self.sessions.lock().unwrap_or_else(PoisonError::into_inner).pop();
        while let Some(session) = idle() {
            if !session.is_closed() {
                return Ok(session);
            }
        }
        Ok(connect(&self.url).await?)
    }

    /// Only a session in which everything went well is used again.
    fn give_back(&self, session: tokio_postgres::Client) {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner).push(session);
    }

    async fn panic(&self, ctx: &Context, how: PanicHow) -> ! {
        match how {
            PanicHow::Str => panic!("a plain text"),
            PanicHow::String => panic!("a text made at {}", "run time"),
            PanicHow::Value => std::panic::panic_any(42_u32),
            PanicHow::AfterAwait => {
                pause(1).await;
                panic!("after an await");
            }
            PanicHow::Blocking => {
                let thread = tokio::task::spawn_blocking(|| panic!("in a blocking thread")).await;
                std::panic::resume_unwind(thread.expect_err("it panics").into_panic())
            }
            PanicHow::Thread => ctx.spawn_blocking(|| panic!("in a blocking thread of the handler")).await,
            PanicHow::Drop => {
                drop(PanicsWhenDropped);
                unreachable!()
            }
            PanicHow::WithMutex => {
                let _guard = self.mutex.lock();
                panic!("with a mutex held");
            }
        }
    }
}

/// An effect that commits by itself.
async fn plain(ctx: &Context, session: &tokio_postgres::Client) -> Result<(), Fail> {
    let plain = "insert into effect_plain (job_id, fence) values ($1, $2)";
    session.execute(plain, &[&i64::from(ctx.job_id()), &ctx.fence()]).await?;
    Ok(())
}

/// Reports the end of a run, also of one that is dropped or panics.
struct RunEnd {
    reports: Reports,
    run: i64,
    outcome: Option<&'static str>,
}

impl RunEnd {
    async fn is(mut self, outcome: &'static str) {
        self.outcome = Some(outcome);
        let _ = self.reports.ended(self.run, outcome).await;
    }
}

impl Drop for RunEnd {
    fn drop(&mut self) {
        if self.outcome.is_none() {
            drop(self.reports.ended(self.run, "dropped"));
        }
    }
}

async fn connect(url: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn pause(ms: u64) {
    // sleep: the work of a handler.
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

fn burn(ms: u64) {
    let end = Instant::now() + Duration::from_millis(ms);
    let mut x = 1_u64;
    while Instant::now() < end {
        for _ in 0..10_000 {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
        }
    }
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        panic!("in a destructor");
    }
}

/// An error with a text and nothing else.
#[derive(Debug)]
struct Plain(String);

impl std::fmt::Display for Plain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Plain {}

/// An error with sources below it.
#[derive(Debug)]
struct Linked {
    depth: usize,
    source: Option<Box<Linked>>,
}

impl std::fmt::Display for Linked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "level {}", self.depth)
    }
}

impl std::error::Error for Linked {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_deref().map(|s| s as _)
    }
}

impl Drop for Linked {
    /// Without recursion: ten thousand levels would overflow the stack here, and that is not what is tested.
    fn drop(&mut self) {
        let mut next = self.source.take();
        while let Some(mut link) = next {
            next = link.source.take();
        }
    }
}

#[derive(Debug)]
struct PanicsWhenShown;

impl std::fmt::Display for PanicsWhenShown {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("the error cannot be shown")
    }
}

impl std::error::Error for PanicsWhenShown {}

fn failure(text: FailText) -> Box<dyn std::error::Error + Send + Sync> {
    match text {
        FailText::Plain(text) => Box::new(Plain(text)),
        FailText::Long(bytes) => Box::new(Plain("€".repeat(bytes / 3))),
        FailText::Nul => Box::new(Plain("a\0b".into())),
        FailText::NotUtf8 => Box::new(Plain(String::from_utf8_lossy(b"tool said \xff\xfe\x80").into_owned())),
        FailText::Chain(depth) => {
            let mut link = None;
            for depth in (0..depth).rev() {
                link = Some(Box::new(Linked { depth, source: link }));
            }
            link.map_or_else(|| Box::new(Plain("no chain".into())) as _, |link| link as _)
        }
        FailText::PanicsWhenShown => Box::new(PanicsWhenShown),
    }
}
