//! A few connections that are shared. Own lines rather than a library: broken connections are already known to
//! [`Session`], which leaves a semaphore and a list.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit};

use crate::store::{Session, SessionOptions, address};
use crate::{Error, ErrorCode};

pub(super) struct Pool {
    options: SessionOptions,
    idle: Mutex<Vec<Session>>,
    permits: Semaphore,
    size: usize,
    wait: Duration,
}

impl Pool {
    pub(super) fn new(options: SessionOptions, size: usize, wait: Duration) -> Pool {
        Pool { options, idle: Mutex::default(), permits: Semaphore::new(size), size, wait }
    }

    pub(super) fn options(&self) -> &SessionOptions {
        &self.options
    }

    /// An idle connection, or a new one. Waits when all are in use.
    pub(super) async fn get(&self) -> Result<Pooled<'_>, Error> {
        let Ok(permit) = tokio::time::timeout(self.wait, self.permits.acquire()).await else {
            return Err(Error::new(
                ErrorCode::Timeout,
                format!("no connection became free within {:?}: all {} are in use", self.wait, self.size),
            )
            .with_help("raise pool_size, or find out what holds them"));
        };
        let permit = permit.map_err(|_| Error::internal("the pool of connections is closed"))?;
        // The one used last: those that are not needed are then closed by the server or a firewall, not by surprise.
        let idle = std::iter::from_fn(|| self.lock().pop()).find(|session| !session.is_closed());
        let session = match idle {
            Some(session) => session,
            None => self.connect().await?,
        };
        Ok(Pooled { session: Some(session), pool: self, _permit: permit })
    }

    async fn connect(&self) -> Result<Session, Error> {
        let what = || format!("connect to {}", address::shown(&self.options.config));
        Session::connect(&self.options, None).await.map_err(|e| Error::store(what(), e))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on loan; goes back to the pool when dropped, unless it is broken.
pub(crate) struct Pooled<'a> {
    session: Option<Session>,
    pool: &'a Pool,
    _permit: SemaphorePermit<'a>,
}

impl Drop for Pooled<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|session| !session.is_closed()) {
            self.pool.lock().push(session);
        }
    }
}

impl Deref for Pooled<'_> {
    type Target = Session;

    fn deref(&self) -> &Session {
        self.session.as_ref().expect("a loan has its session until it is dropped")
    }
}

impl DerefMut for Pooled<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        self.session.as_mut().expect("a loan has its session until it is dropped")
    }
}
