//! The schema as text, read from the catalogs: what `sql/schema.sql` shows to a reviewer.

use tokio_postgres::Client;

/// Each query returns one line per row: a heading with its details below it, in a stable order on every server version.
const LISTINGS: [(&str, &str); 5] = [
    (
        "sequences",
        "select format('sequence %s cache %s', sequencename, cache_size)
         from pg_sequences where schemaname = $1 and sequencename not like '%\\_n\\_seq' order by sequencename",
    ),
    (
        "tables",
        "with line as (
           select c.relname as place, 0 as part, 0 as n,
                  format('%stable %s%s%s', case when c.relpersistence = 'u' then 'unlogged ' end, c.relname, ' partition by ' || pg_get_partkeydef(c.oid),
                         ' with (' || array_to_string(c.reloptions, ', ') || ')') as text
           from pg_class c where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           union all
           select c.relname, 1, a.attnum,
                  format('  %s %s%s%s%s', a.attname, format_type(a.atttypid, a.atttypmod), case when a.attnotnull then ' not null' end,
                         case when a.attidentity <> '' then ' identity' end, ' default ' || pg_get_expr(d.adbin, d.adrelid))
           from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
           left join pg_attrdef d on d.adrelid = c.oid and d.adnum = a.attnum
           where c.relnamespace = $1::text::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
           union all
           select c.relname, 2, row_number() over (partition by c.oid order by k.conname),
                  format('  %s %s', k.conname, pg_get_constraintdef(k.oid))
           from pg_class c join pg_constraint k on k.conrelid = c.oid and k.contype <> 'n'
           where c.relnamespace = $1::text::regnamespace and not c.relispartition
           union all
           select c.relname, 3, row_number() over (partition by c.oid order by x.relname), '  ' || pg_get_indexdef(x.oid)
           from pg_class c join pg_index i on i.indrelid = c.oid and not i.indisprimary join pg_class x on x.oid = i.indexrelid
           where c.relnamespace = $1::text::regnamespace and not c.relispartition
           union all
           select c.relname, 4, row_number() over (partition by c.oid order by t.tgname), '  ' || pg_get_triggerdef(t.oid)
           from pg_class c join pg_trigger t on t.tgrelid = c.oid and not t.tgisinternal
           where c.relnamespace = $1::text::regnamespace and not c.relispartition)
         select text from line order by place collate \"C\", part, n",
    ),
    (
        "views",
        "select format('view %s(%s)', c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), ', ' order by a.attnum))
         from pg_class c join pg_attribute a on a.attrelid = c.oid and a.attnum > 0
         where c.relnamespace = $1::text::regnamespace and c.relkind = 'v' group by c.relname order by c.relname collate \"C\"",
    ),
    (
        "functions that a client calls (security definer)",
        "select format('function %s(%s) returns %s', p.proname, pg_get_function_arguments(p.oid), pg_get_function_result(p.oid))
         from pg_proc p where p.pronamespace = $1::text::regnamespace and p.prosecdef
         order by p.proname collate \"C\", p.oid",
    ),
    (
        "functions that those build on",
        "select format('function %s(%s) returns %s', p.proname, pg_get_function_identity_arguments(p.oid), pg_get_function_result(p.oid))
         from pg_proc p where p.pronamespace = $1::text::regnamespace and not p.prosecdef
         order by p.proname collate \"C\", p.oid",
    ),
];

/// The tables, constraints, indexes, views and functions of a schema, a line each.
///
/// # Panics
/// When the catalogs cannot be read.
pub async fn schema_text(client: &Client, schema: &str) -> String {
    // Names are shown with their schema, also to a role that is named like it.
    client.batch_execute("set search_path = pg_catalog").await.unwrap_or_else(|e| panic!("search_path: {e:?}"));
    let mut text = String::from(
        "-- The schema as it stands after all migrations, read from the catalogs. Written by a test; do not edit.\n",
    );
    for (title, query) in LISTINGS {
        let rows =
            client.query(query, &[&schema]).await.unwrap_or_else(|e| panic!("{title} could not be listed: {e:?}"));
        text.push_str(&format!("\n-- {title}\n"));
        for row in rows {
            text.push_str(row.get::<_, &str>(0));
            text.push('\n');
        }
    }
    text
}
