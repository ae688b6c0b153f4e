//! One connection to PostgreSQL.
//!
//! Statements are pipelined: several tasks may have a statement in flight on one session, the server answers in order.
//! In direct mode they are prepared once per connection. Behind a transaction pooler only unnamed statements in a
//! single trip are right, so nothing is prepared there. Every statement has a deadline: a connection whose packets are
//! dropped without an answer is noticed and given up. A worker's is given up earlier when another connection can be made
//! and hears there that the server has nothing to do for the old one: then the answer was lost.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_postgres::config::TargetSessionAttrs;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Notification, Row, SimpleQueryMessage, Socket};

use super::address;
use super::failure::{Loss, LossKind, StoreError, is_goodbye};
use super::hosts::{self, Answered, Connected};
use super::lost_answers::Asking;
use super::statement::{Statement, Texts};

/// A connection attempt that takes longer is given up.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Idle connections are probed after this time, then every [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(5);
const KEEPALIVE_RETRIES: u32 = 3;

/// Whatever the role or the database sets for its sessions. Our statements are short, and compiling their plans takes
/// longer than running them. The functions are written for read committed: under serializable, claims would undo each
/// other all day.
const OWN_SETTINGS: &str = r"-c jit=off -c default_transaction_isolation=read\ committed";
/// For a worker's sessions: their statements have a deadline of their own, and a group of reports that was cut off would
/// only come again; and a session that is idle is one that waits for work. For a person's or a program's questions the limits stand that were set for them.
const UNTIMED: &str = "-c statement_timeout=0 -c idle_session_timeout=0";

/// What the server says when a schema, a table or a function is not there.
const MISSING: [&str; 3] = ["3F000", "42P01", "42883"];
/// See `errors.sql`.
const NOT_MIGRATED: &str = "TN006";

/// How to make a [`Session`].
#[derive(Clone)]
pub(crate) struct SessionOptions {
    /// Address and credentials, from [`SessionOptions::new`].
    pub(crate) config: Config,
    pub(crate) texts: Arc<Texts>,
    /// There is a transaction pooler between us and the server.
    pub(crate) pooler: bool,
    /// The longest wait for the answer to one statement.
    pub(crate) deadline: Duration,
    /// The server sets no limit of its own, whatever was set for the role.
    untimed: bool,
    answered: Arc<Answered>,
    asking: Arc<Asking>,
    #[cfg_attr(not(feature = "tls"), allow(dead_code))]
    pub(crate) verify_tls: bool,
}

impl SessionOptions {
    /// `url` is a connection string as [`address::read`] takes it. `sslmode` may also be `verify-full`: the server's
    /// certificate must be good for its name.
    pub(crate) fn new(url: &str, texts: Arc<Texts>, application_name: &str) -> Result<SessionOptions, StoreError> {
        let (mut config, verify_tls) = address::read(url)?;
        if config.get_application_name().is_none() {
            config.application_name(application_name);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        config
            .keepalives_idle(KEEPALIVE_IDLE)
            .keepalives_interval(KEEPALIVE_INTERVAL)
            .keepalives_retries(KEEPALIVE_RETRIES);
        let deadline = Duration::from_secs(30);
        let (answered, asking) = (Arc::new(Answered::none()), Arc::new(Asking::new()));
        Ok(SessionOptions { config, texts, pooler: false, deadline, untimed: false, answered, asking, verify_tls })
    }

    /// The same address for a connection that a worker works on.
    pub(crate) fn of_worker(&self, pooler: bool, deadline: Duration) -> SessionOptions {
        SessionOptions { pooler, deadline, untimed: true, ..self.clone() }
    }

    /// The same for a short question on the side, which nobody asks about.
    pub(super) fn aside(&self, limit: Duration) -> SessionOptions {
        SessionOptions { deadline: limit, ..self.clone() }
    }

    /// The configuration to connect with: what depends on the other options is put in here.
    fn prepared_config(&self) -> Config {
        let mut config = self.config.clone();
        config.tcp_user_timeout(self.deadline);
        if self.pooler {
            // The check is a statement of its own before ours and would read another server's state.
            config.target_session_attrs(TargetSessionAttrs::Any);
        } else {
            let own = config.get_options().unwrap_or_default();
            config.options(format!("{own} {OWN_SETTINGS} {}", if self.untimed { UNTIMED } else { "" }));
        }
        config
    }
}

/// One connection. Dropping it closes it.
pub(crate) struct Session {
    client: Client,
    options: SessionOptions,
    /// The process that serves it, once it is known.
    backend: OnceLock<i32>,
    /// The place of its host, of several.
    host: usize,
    prepared: Mutex<HashMap<&'static str, tokio_postgres::Statement>>,
    loss: watch::Sender<Option<Loss>>,
    driver: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(backend) = self.backend.get() {
            self.options.asking.remove(*backend);
        }
        self.driver.abort();
    }
}

impl Session {
    /// Connects. Notifications go to `notifications`; when nobody takes them they are dropped, they are hints only.
    pub(crate) async fn connect(
        options: &SessionOptions,
        notifications: Option<mpsc::Sender<Notification>>,
    ) -> Result<Session, StoreError> {
        let config = options.prepared_config();
        let limit = options.deadline.min(CONNECT_TIMEOUT * 2).max(hosts::connect_min(&config));
        let connecting = async {
            #[cfg(feature = "tls")]
            let session =
                Session::open(&config, super::tls::connector(options.verify_tls)?, options, notifications).await;
            #[cfg(not(feature = "tls"))]
            let session = Session::open(&config, tokio_postgres::NoTls, options, notifications).await;
            session
        };
        tokio::time::timeout(limit, connecting)
            .await
            .unwrap_or_else(|_| Err(StoreError::Lost(Loss::silent("no answer while connecting"))))
    }

    async fn open<T>(
        config: &Config,
        tls: T,
        options: &SessionOptions,
        notifications: Option<mpsc::Sender<Notification>>,
    ) -> Result<Session, StoreError>
    where
        T: MakeTlsConnect<Socket> + Clone,
        T::Stream: Send + 'static,
        T::TlsConnect: Send,
        <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
    {
        let Connected { client, mut connection, place } = hosts::connect(config, tls, &options.answered).await?;
        let loss = watch::Sender::new(None);
        let ended = loss.clone();
        let driver = tokio::spawn(async move {
            let mut goodbye = None;
            let end = loop {
                match poll_fn(|cx| connection.poll_message(cx)).await {
                    Some(Ok(AsyncMessage::Notification(notification))) => {
                        if let Some(to) = &notifications {
                            let _ = to.try_send(notification);
                        }
                    }
                    // A server that is shut down at once takes its leave with a warning, not with an error.
                    Some(Ok(AsyncMessage::Notice(notice))) if is_goodbye(notice.code()) => {
                        goodbye = Some(format!("{} ({})", notice.message(), notice.code().code()));
                    }
                    Some(Ok(_)) => {}
                    Some(Err(error)) => break loss_of(error),
                    None => break Loss::silent("closed"),
                }
            };
            let end = match goodbye {
                Some(text) => Loss { announced: true, ..Loss::silent(text) },
                None => end,
            };
            end_with(&ended, end);
        });
        Ok(Session {
            client,
            options: options.clone(),
            backend: OnceLock::new(),
            host: place,
            prepared: Mutex::default(),
            loss,
            driver,
        })
    }

    /// Waits until the connection is of no use any more.
    pub(crate) async fn closed(&self) -> Loss {
        let mut loss = self.loss.subscribe();
        match loss.wait_for(Option::is_some).await {
            Ok(loss) => loss.clone().unwrap_or_else(|| Loss::silent("closed")),
            Err(_) => Loss::silent("closed"),
        }
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.loss.borrow().is_some()
    }

    /// The client itself, for what is not a [`Statement`]: transactions and COPY.
    pub(crate) fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Runs one statement.
    pub(crate) async fn query(
        &self,
        statement: &'static Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        debug_assert_eq!(statement.params.len(), params.len(), "parameters of {}", statement.name);
        let answer = self.ask(statement, params).await;
        if let Err(StoreError::Refused { sqlstate, .. }) = &answer
            && MISSING.contains(&sqlstate.code())
        {
            self.check_schema().await?;
        }
        answer
    }

    async fn ask(&self, statement: &'static Statement, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>, StoreError> {
        self.within_deadline(async {
            if self.options.pooler {
                return self.query_unnamed(statement, params).await;
            }
            match self.query_prepared(statement, params).await {
                // A migration replaced what the plan was made for: prepare again, once.
                Err(StoreError::Refused { sqlstate, .. }) if matches!(sqlstate.code(), "0A000" | "26000") => {
                    self.forget(statement);
                    self.query_prepared(statement, params).await
                }
                answer => answer,
            }
        })
        .await
    }

    /// Runs one statement that returns at most one row.
    pub(crate) async fn query_opt(
        &self,
        statement: &'static Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, StoreError> {
        let mut rows = self.query(statement, params).await?;
        if rows.len() > 1 {
            return Err(StoreError::Protocol(format!("{} returned {} rows", statement.name, rows.len())));
        }
        Ok(rows.pop())
    }

    /// Runs a script of several commands in one trip, as one transaction; the first value that it returns. Nothing can
    /// be bound: only for texts of ours.
    pub(crate) async fn run_script(&self, sql: &str) -> Result<Option<String>, StoreError> {
        let answers = self.within_deadline(async { Ok(self.client.simple_query(sql).await?) }).await?;
        Ok(answers.iter().find_map(|answer| match answer {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        }))
    }

    /// An error when there is nothing of tenure in the schema. Asked where a statement missed something, so that all verbs say
    /// the same of a database that was never migrated, and not which of its tables they looked for first.
    pub(crate) async fn check_schema(&self) -> Result<(), StoreError> {
        const FIND: &str = "select c.relname::text from pg_catalog.pg_class c join pg_catalog.pg_namespace n \
                            on n.oid = c.relnamespace where n.nspname = $1 and c.relname = 'migration'";
        let schema = self.schema();
        let found = async { Ok(self.client.query_typed(FIND, &[(&schema, Type::TEXT)]).await?) };
        if !self.within_deadline(found).await?.is_empty() {
            return Ok(());
        }
        let database = self.options.config.get_dbname().map(|name| format!(" {name:?}")).unwrap_or_default();
        Err(StoreError::Refused {
            sqlstate: SqlState::from_code(NOT_MIGRATED),
            message: format!("the database{database} has no schema {schema:?} of tenure"),
            detail: None,
            hint: Some("run `tenure migrate`, with the same database and --schema".to_owned()),
        })
    }

    /// The name of the schema that was chosen.
    pub(crate) fn schema(&self) -> &str {
        self.options.texts.schema()
    }

    async fn query_unnamed(
        &self,
        statement: &'static Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let typed: Vec<_> = params.iter().copied().zip(statement.params.iter().cloned()).collect();
        Ok(self.client.query_typed(&self.options.texts.sql(statement), &typed).await?)
    }

    async fn query_prepared(
        &self,
        statement: &'static Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, StoreError> {
        let known = self.lock_prepared().get(statement.name).cloned();
        let prepared = match known {
            Some(prepared) => prepared,
            None => {
                let sql = self.options.texts.sql(statement);
                let prepared = self.client.prepare_typed(&sql, statement.params).await?;
                self.lock_prepared().insert(statement.name, prepared.clone());
                prepared
            }
        };
        Ok(self.client.query(&prepared, params).await?)
    }

    fn forget(&self, statement: &'static Statement) {
        self.lock_prepared().remove(statement.name);
    }

    fn lock_prepared(&self) -> std::sync::MutexGuard<'_, HashMap<&'static str, tokio_postgres::Statement>> {
        self.prepared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks which process serves this session, so that a lost answer is noticed early. Not behind a pooler, where it changes.
    pub(crate) async fn learn_backend(&self) -> Result<(), StoreError> {
        let pid = self.run_script("select pg_backend_pid()").await?;
        if let Some(pid) = pid.and_then(|pid| pid.parse().ok())
            && self.backend.set(pid).is_ok()
        {
            self.options.asking.add(pid);
        }
        Ok(())
    }

    /// A statement without an answer in time, or an answer that makes the connection useless, ends the session.
    async fn within_deadline<T>(&self, work: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let silent = |text: String| Err(StoreError::Lost(Loss::silent(text)));
        let answer = tokio::select! {
            biased;
            answer = tokio::time::timeout(self.options.deadline, work) => {
                answer.unwrap_or_else(|_| silent(format!("no answer within {:?}", self.options.deadline)))
            }
            () = self.options.asking.lost(self.backend.get().copied(), &self.options) => silent("the server is done, and its answer did not arrive".to_owned()),
        };
        if let Err(StoreError::Lost(loss)) = &answer {
            if loss.kind == LossKind::ReadOnly {
                self.options.answered.pass_over(self.host, &self.options.config);
            }
            end_with(&self.loss, loss.clone());
            self.driver.abort();
        }
        answer
    }
}

/// The first reason stands; an announcement by the server says more than the broken pipe after it.
fn end_with(ended: &watch::Sender<Option<Loss>>, loss: Loss) {
    ended.send_if_modified(|current| match current {
        Some(known) if known.announced || !loss.announced => false,
        Some(_) | None => {
            *current = Some(loss);
            true
        }
    });
}

fn loss_of(error: tokio_postgres::Error) -> Loss {
    match StoreError::from(error) {
        StoreError::Lost(loss) => loss,
        other => Loss::silent(other.to_string()),
    }
}
