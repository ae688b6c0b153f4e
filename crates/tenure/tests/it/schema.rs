//! The schema in `sql/schema.sql` is the one that the migrations make.

use std::fs;
use std::path::Path;

use tenure::testing::{schema_text, with_database};

/// With TENURE_BLESS=1 the file is written anew.
#[tokio::test]
async fn the_schema_that_is_reviewed_is_the_one_that_is_made() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("sql/schema.sql");
    let made = with_database(async |db| schema_text(&db.sql().await, "tenure").await).await;
    if std::env::var_os("TENURE_BLESS").is_some() {
        fs::write(&file, &made).expect("sql/schema.sql can be written");
    }
    let reviewed = fs::read_to_string(&file).unwrap_or_default();
    let stale: Vec<&str> = made.lines().filter(|line| !reviewed.lines().any(|old| old == *line)).collect();
    assert!(
        made == reviewed,
        "sql/schema.sql is stale; TENURE_BLESS=1 cargo xtask test schema writes it. New or changed lines:\n{}",
        stale.join("\n")
    );
}

/// Every instant is stored with its zone, and every key is wide enough.
#[tokio::test]
async fn instants_have_a_zone_and_keys_are_bigint() {
    with_database(async |db| {
        let rows = db
            .sql()
            .await
            .query(
                "select c.relname || '.' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod)
                 from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
                 where c.relnamespace = 'tenure'::regnamespace and c.relkind in ('r', 'p')
                   and (a.atttypid = 'timestamp'::regtype or (a.attname ~ '(^|_)(id|block)$' and a.atttypid <> 'bigint'::regtype))
                 order by 1",
                &[],
            )
            .await
            .expect("the catalogs can be read");
        let wrong: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    })
    .await;
}
