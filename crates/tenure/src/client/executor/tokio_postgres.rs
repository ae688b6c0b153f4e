//! The adapter for tokio-postgres.

use std::pin::pin;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, CopyInSink, Row, Transaction};

use super::sealed::{CopyRows, Param, Run};
use crate::Error;
use crate::store::{Statement, Texts};

/// The parameter as tokio-postgres sends it.
pub(super) fn value<'a>(param: &'a Param<'_>) -> &'a (dyn ToSql + Sync) {
    match param {
        Param::Text(text) => text,
        Param::Texts(texts) => texts,
        Param::Int(number) => number,
    }
}

fn typed<'a>(params: &'a [Param<'_>]) -> Vec<(&'a (dyn ToSql + Sync), Type)> {
    let type_of = |param: &Param<'_>| match param {
        Param::Text(_) => Type::TEXT,
        Param::Texts(_) => Type::TEXT_ARRAY,
        Param::Int(_) => Type::INT8,
    };
    params.iter().map(|param| (value(param), type_of(param))).collect()
}

fn first_column(rows: &[Row], statement: &Statement) -> Result<Vec<i64>, Error> {
    rows.iter().map(|row| row.try_get(0).map_err(|e| Error::postgres(statement.name, e))).collect()
}

async fn send(sink: CopyInSink<Bytes>, rows: CopyRows<'_>, copy: &Statement) -> Result<(), Error> {
    // A sink that is dropped unfinished makes the server give the COPY up.
    let mut sink = pin!(sink);
    for row in rows {
        sink.send(row?).await.map_err(|e| Error::postgres(copy.name, e))?;
    }
    sink.finish().await.map_err(|e| Error::postgres(copy.name, e))?;
    Ok(())
}

macro_rules! adapter {
    ($($connection:ty),+) => {$(
        #[allow(private_interfaces)]
        impl Run for $connection {
            async fn numbers(
                &mut self,
                texts: &Texts,
                statement: &'static Statement,
                params: &[Param<'_>],
            ) -> Result<Vec<i64>, Error> {
                // The only form that is a single trip without a name: right behind any pooler.
                let rows = self.query_typed(&texts.sql(statement), &typed(params)).await;
                first_column(&rows.map_err(|e| Error::postgres(statement.name, e))?, statement)
            }

            async fn copy_rows(&mut self, texts: &Texts, copy: &'static Statement, rows: CopyRows<'_>) -> Result<(), Error> {
                let sink = self.copy_in(&*texts.sql(copy)).await.map_err(|e| Error::postgres(copy.name, e))?;
                send(sink, rows, copy).await
            }
        }
    )+};
}

adapter!(Client, &Client, Transaction<'_>, &Transaction<'_>);
