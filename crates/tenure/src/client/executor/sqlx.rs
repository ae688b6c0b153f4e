//! The adapters for sqlx 0.8 and 0.9: the same lines, for two crates that are different types to the compiler.

use super::sealed::{CopyRows, Param, Run};
use crate::store::{Statement, Texts};
use crate::{Error, ErrorCode};

macro_rules! adapter {
    ($name:ident, $sqlx:ident, $sql:expr) => {
        mod $name {
            use $sqlx::postgres::{PgConnection, PgDatabaseError};
            use $sqlx::{Postgres, Transaction, query_scalar};

            use super::*;

            #[allow(private_interfaces)]
            impl Run for PgConnection {
                async fn numbers(
                    &mut self,
                    texts: &Texts,
                    statement: &'static Statement,
                    params: &[Param<'_>],
                ) -> Result<Vec<i64>, Error> {
                    let sql = texts.sql(statement);
                    // Without a name: a pooler may give the connection's next transaction to another server.
                    let mut query = query_scalar::<Postgres, i64>($sql(&sql)).persistent(false);
                    for param in params {
                        query = match *param {
                            Param::Text(text) => query.bind(text.map(str::to_owned)),
                            Param::Texts(texts) => query.bind(texts.iter().map(|t| t.to_string()).collect::<Vec<_>>()),
                            Param::Int(number) => query.bind(number),
                        };
                    }
                    query.fetch_all(&mut *self).await.map_err(|e| failed(statement.name, e))
                }

                async fn copy_rows(
                    &mut self,
                    texts: &Texts,
                    copy: &'static Statement,
                    rows: CopyRows<'_>,
                ) -> Result<(), Error> {
                    let mut sink = self.copy_in_raw(&texts.sql(copy)).await.map_err(|e| failed(copy.name, e))?;
                    for row in rows {
                        match row {
                            Ok(row) => {
                                sink.send(row).await.map_err(|e| failed(copy.name, e))?;
                            }
                            Err(error) => {
                                // The error to tell is the caller's, not that the server was told to give up.
                                let _ = sink.abort(error.message()).await;
                                return Err(error);
                            }
                        }
                    }
                    sink.finish().await.map_err(|e| failed(copy.name, e))?;
                    Ok(())
                }
            }

            #[allow(private_interfaces)]
            impl Run for Transaction<'_, Postgres> {
                async fn numbers(
                    &mut self,
                    texts: &Texts,
                    statement: &'static Statement,
                    params: &[Param<'_>],
                ) -> Result<Vec<i64>, Error> {
                    (**self).numbers(texts, statement, params).await
                }

                async fn copy_rows(
                    &mut self,
                    texts: &Texts,
                    copy: &'static Statement,
                    rows: CopyRows<'_>,
                ) -> Result<(), Error> {
                    (**self).copy_rows(texts, copy, rows).await
                }
            }

            fn failed(what: &str, error: $sqlx::Error) -> Error {
                if let $sqlx::Error::Database(reported) = &error
                    && let Some(reported) = reported.try_downcast_ref::<PgDatabaseError>()
                {
                    return Error::reported(
                        what,
                        reported.code(),
                        reported.message(),
                        reported.detail(),
                        reported.hint(),
                    );
                }
                let code = match &error {
                    $sqlx::Error::Io(_) | $sqlx::Error::Tls(_) | $sqlx::Error::WorkerCrashed => ErrorCode::Unreachable,
                    _ => ErrorCode::Database,
                };
                Error::new(code, format!("cannot {what}: {error}")).with_source(error)
            }
        }
    };
}

#[cfg(feature = "sqlx08")]
adapter!(version_08, sqlx08, std::convert::identity::<&str>);
#[cfg(feature = "sqlx09")]
adapter!(version_09, sqlx09, |sql: &str| sqlx09::AssertSqlSafe(sql.to_owned()));
