//! The caller's own connection or transaction, of whichever client library.

#[cfg(any(feature = "sqlx08", feature = "sqlx09"))]
mod sqlx;
mod tokio_postgres;

use crate::Error;
use crate::store::{Session, Statement, Texts};
use sealed::{CopyRows, Param, Run};

/// A connection or transaction that a verb can run on: the verb's writes commit or roll back with the caller's own.
///
/// It is implemented for
/// - `tokio_postgres::Transaction` and `tokio_postgres::Client`, by value or behind `&`,
/// - `sqlx::PgConnection` and `sqlx::Transaction<Postgres>` of sqlx 0.8 (feature `sqlx08`) and 0.9 (`sqlx09`).
///
/// A pooled connection is passed as what it dereferences to: `&mut *connection`. Each verb is one statement without a
/// name, so that nothing is left behind on the connection. Behind a pooler in transaction mode pass sqlx connections
/// inside a transaction only: sqlx sends a statement in two trips, between which such a pooler may change servers.
pub trait Executor: Run {}

impl<T: Run + ?Sized> Executor for T {}

pub(crate) mod sealed {
    use bytes::Bytes;

    use crate::Error;
    use crate::store::{Statement, Texts};

    /// A parameter of one of our statements. Few types, so that every client library sends them alike.
    #[derive(Clone, Copy, Debug)]
    pub enum Param<'a> {
        Text(Option<&'a str>),
        Texts(&'a [&'a str]),
        Int(Option<i64>),
    }

    /// Lines in the text form of COPY, in pieces of any size.
    pub type CopyRows<'a> = &'a mut (dyn Iterator<Item = Result<Bytes, Error>> + Send);

    #[allow(private_interfaces)]
    pub trait Run: Send {
        /// Runs a statement whose rows have one column of type bigint, and gives these.
        #[doc(hidden)]
        fn numbers(
            &mut self,
            texts: &Texts,
            statement: &'static Statement,
            params: &[Param<'_>],
        ) -> impl Future<Output = Result<Vec<i64>, Error>> + Send;

        /// Sends rows to `copy … from stdin`. After an error the transaction cannot commit.
        #[doc(hidden)]
        fn copy_rows(
            &mut self,
            texts: &Texts,
            copy: &'static Statement,
            rows: CopyRows<'_>,
        ) -> impl Future<Output = Result<(), Error>> + Send;
    }
}

// Our own connections: prepared once where that is right.
#[allow(private_interfaces)]
impl Run for Session {
    async fn numbers(
        &mut self,
        _: &Texts,
        statement: &'static Statement,
        params: &[Param<'_>],
    ) -> Result<Vec<i64>, Error> {
        let values: Vec<_> = params.iter().map(tokio_postgres::value).collect();
        let rows = self.query(statement, &values).await.map_err(|e| Error::store(statement.name, e))?;
        rows.iter().map(|row| row.try_get(0).map_err(|e| Error::postgres(statement.name, e))).collect()
    }

    async fn copy_rows(&mut self, texts: &Texts, copy: &'static Statement, rows: CopyRows<'_>) -> Result<(), Error> {
        self.client_mut().copy_rows(texts, copy, rows).await
    }
}
