//! Behind PgBouncer in transaction mode: by polling and leases, without sessions of one's own.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tenure::testing::until_within;
use tenure_dev::find_pgbouncer;

use super::{sweep, sweep_worker};
use crate::{Act, Bound, Measure, Stage};

const LIMIT: Duration = Duration::from_secs(60);
/// Server connections that all clients share.
const POOL: usize = 5;

/// A PgBouncer of the scenario's own.
struct PgBouncer {
    child: Child,
    folder: PathBuf,
    port: u16,
}

impl PgBouncer {
    /// Starts it in front of the server of this URL; `prepared`: how many prepared statements it follows, 0 for none.
    async fn start(url: &str, prepared: usize) -> PgBouncer {
        let config: tokio_postgres::Config = url.parse().expect("a connection URL");
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a local port");
        let port = free.local_addr().expect("its address").port();
        drop(free);
        let folder = std::env::temp_dir().join(format!("tenure-pgbouncer-{port}"));
        std::fs::create_dir_all(&folder).expect("a folder for PgBouncer");
        let user = config.get_user().expect("a user");
        let password =
            config.get_password().map(|p| format!(" password={}", String::from_utf8_lossy(p))).unwrap_or_default();
        let server = config.get_ports().first().copied().unwrap_or(5432);
        // Older ones do not know the setting.
        let follows = if prepared > 0 { format!("max_prepared_statements = {prepared}\n") } else { String::new() };
        let ini = format!(
            "[databases]\n* = host=127.0.0.1 port={server} user={user}{password}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\ndefault_pool_size = {POOL}\n\
             max_client_conn = 200\n{follows}ignore_startup_parameters = extra_float_digits,options\n"
        );
        let file = folder.join("pgbouncer.ini");
        std::fs::write(&file, ini).expect("PgBouncer's settings");
        let log = std::fs::File::create(folder.join("log")).expect("PgBouncer's log");
        let mut command = Command::new(
            find_pgbouncer().expect("PgBouncer is installed, or TENURE_WITHOUT_POOLER is set to leave this out"),
        );
        // PgBouncer refuses to run as root.
        // SAFETY: a plain system call.
        if unsafe { libc::geteuid() } == 0 {
            open_to_all(&folder);
            command.args(["-u", "nobody"]);
        }
        let child = command
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("PgBouncer starts");
        let bouncer = PgBouncer { child, folder, port };
        until_within(LIMIT, "PgBouncer listens", async || {
            tokio::net::TcpStream::connect(("127.0.0.1", port)).await.is_ok()
        })
        .await;
        bouncer
    }

    fn url(&self, url: &str) -> String {
        let config: tokio_postgres::Config = url.parse().expect("a connection URL");
        let (user, database) = (config.get_user().expect("a user"), config.get_dbname().expect("a database"));
        format!("postgres://{user}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn open_to_all(folder: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt;
    let _ = std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o755));
    for file in ["pgbouncer.ini", "log"] {
        let _ = std::fs::set_permissions(folder.join(file), std::fs::Permissions::from_mode(0o644));
    }
}

/// Whether the scenarios behind a pooler are left out: there is none, and whoever started this has said that it is known.
pub fn is_left_out() -> bool {
    let left_out = find_pgbouncer().is_none() && std::env::var_os("TENURE_WITHOUT_POOLER").is_some();
    if left_out {
        eprintln!("DID NOT RUN: PgBouncer is not installed");
    }
    left_out
}

/// Two workers behind the pooler, server connections killed at random.
pub async fn behind_a_pooler(stage: &Stage) -> Vec<Measure> {
    let bouncer = PgBouncer::start(stage.url(), 0).await;
    let url = bouncer.url(stage.url());
    let options = |name: &str| stage.worker(name).url(&url).lease(Duration::from_secs(4)).with(|o| o.pooler = true);
    let mut workers = vec![stage.start(options("a")).await, stage.start(options("b")).await];
    let client = tenure::Client::builder(&url).pooler(true).connect().await.expect("a client behind the pooler");
    let (mut jobs, mut killed) = (0, 0);
    // By the names of the workers and of the client: the pooler passes them on.
    let kill = "select count(*) filter (where pg_terminate_backend(pid)) from (select pid from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and (application_name in ('a', 'b') or application_name like 'tenure%') order by random() limit 1) x";
    let act = |act: &Act| tenure::RawJson::of(act).expect("JSON");
    for n in 0..20 {
        // A call that is cut is the caller's to repeat; here its jobs may come twice and that is counted.
        for _ in 0..5 {
            if client.enqueue(tenure::Enqueue::raw("act", act(&Act::Sleep { ms: 20 }))).await.is_ok() {
                jobs += 1;
            }
        }
        jobs += stage.enqueue_many(&Act::EffectOnce { after_ms: 0, hold_ms: 0 }, 3).await.len();
        jobs += stage
            .enqueue_many(
                &Act::Fail { text: crate::act::FailText::Plain("once".into()) }.first(Act::Sleep { ms: 1 }),
                1,
            )
            .await
            .len();
        if n % 3 == 2 {
            killed += stage.count(kill, &[]).await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await; // the pace of the load
    }
    stage.completed(jobs, LIMIT).await;
    let id = stage.enqueue(&Act::Sleep { ms: 1 }).await;
    stage.completed(jobs + 1, LIMIT).await;
    let latency = "select extract(epoch from p.started_at - j.created_at)::float8 from probe p join tenure.job j on j.id = p.job_id where j.id = $1";
    let latency: f64 = stage.one(latency, &[&id]).await;
    let logs: String = workers.iter().map(|worker| worker.log()).collect();
    let collisions =
        ["42P05", "26000", "already exists", "does not exist"].iter().filter(|word| logs.contains(*word)).count();
    // One is killed: only its lease tells.
    stage.enqueue_many(&Act::Sleep { ms: 1_500 }, 8).await;
    let running = "select count(*) from probe where finished_at is null";
    until_within(LIMIT, "jobs run", async || stage.count(running, &[]).await >= 4).await;
    let mut victim = workers.swap_remove(0);
    stage.kill(&mut victim).await;
    stage.completed(jobs + 9, LIMIT).await;
    let measures = vec![
        Measure::new("behind a pooler: server connections killed", Bound::AtLeast(1.0), killed as f64, ""),
        Measure::count("behind a pooler: collisions of prepared statements", 0, collisions),
        Measure::count("behind a pooler: effects that happened twice", 0, stage.effects_twice().await as usize),
        Measure::count("behind a pooler: two runs of one job at a time", 0, stage.overlaps().await as usize),
        Measure::new("behind a pooler: from enqueue to start", Bound::AtMost(1.5), latency, "s"),
        Measure::count("behind a pooler: the workers say so", 1, usize::from(logs.contains("pooler"))),
    ];
    for worker in workers {
        worker.shut_down().await;
    }
    measures
}

fn follows_prepared_statements() -> bool {
    let version = find_pgbouncer().and_then(|program| Command::new(program).arg("--version").output().ok());
    let text = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let numbers = text.split_whitespace().nth(1).unwrap_or_default().split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    numbers.collect::<Vec<_>>() >= vec![1, 21]
}

/// Every verb of clients, and a worker's whole life, through a pooler that knows nothing of prepared statements and through
/// one that does.
pub async fn functions_behind_a_pooler(stage: &Stage) -> Vec<Measure> {
    let mut measures = Vec::new();
    for (prepared, what) in [(0, "no prepared statements"), (200, "prepared statements")] {
        if prepared > 0 && !follows_prepared_statements() {
            let why = "PgBouncer follows them from version 1.21 on";
            measures.push(Measure::did_not_run("behind a pooler with prepared statements", why));
            continue;
        }
        let bouncer = PgBouncer::start(stage.url(), prepared).await;
        let url = bouncer.url(stage.url());
        // Where the pooler follows prepared statements, a program need not say that there is one.
        let client = |schema: &str| {
            let builder = tenure::Client::builder(&url).schema(schema).pooler(prepared == 0);
            builder.connect_lazy().expect("its settings are right")
        };
        let wrong = sweep::each_verb(stage, &url, client).await;
        wrong.iter().for_each(|wrong| eprintln!("behind a pooler with {what}: {wrong}"));
        measures.push(Measure::count(format!("behind a pooler with {what}: verbs that do not work"), 0, wrong.len()));
        let wrong = sweep_worker::behind_a_pooler(stage, &url).await;
        let claim =
            format!("behind a pooler with {what}: jobs of a worker's whole life that did not end as they should");
        measures.push(Measure::count(claim, 0, wrong));
    }
    measures
}
