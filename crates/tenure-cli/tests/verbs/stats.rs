//! What happened, as it is shown.

use serde_json::Value;
use tenure::testing::with_database;

use super::{json, tenure};

#[tokio::test(flavor = "multi_thread")]
async fn stats_show_what_happened_by_kind_queue_and_minute() {
    with_database(async |db| {
        let nothing = tenure(db, &["stats"]);
        assert_eq!((nothing.code, nothing.out.as_str()), (0, ""), "{nothing:?}");
        assert!(nothing.said.contains("nothing happened"), "{nothing:?}");
        let tell = "select tenure.record_stats(1, 1, clock_timestamp() - interval '2 minutes',
            '[{\"queue\": \"mail\", \"kind\": \"send\", \"started\": 60, \"completed\": 58, \"failed\": 2, \"retried\": 2, \"wait_buckets\": [20], \"wait_counts\": [60],
               \"run_buckets\": [41], \"run_counts\": [60]}, {\"queue\": \"mail\", \"kind\": \"\\u001b[2Jx\", \"completed\": 1}]',
            '{\"claim_buckets\": [17], \"claim_counts\": [9], \"flush_buckets\": [21], \"flush_counts\": [7], \"memory_bytes\": 10485760, \"throttled_ms\": 2500}')";
        db.sql().await.query(tell, &[]).await.expect("told");
        let by_kind = tenure(db, &["stats"]);
        assert_eq!(by_kind.code, 0, "{by_kind:?}");
        for part in ["QUEUE", "WAIT", "mail", "send", "3.0ms 3.0ms 3.0ms", "115ms", "WORKER", "10.0", "2.5s", "█"] {
            assert!(by_kind.out.contains(part), "{part} is missing: {}", by_kind.out);
        }
        assert!(!by_kind.out.contains('\u{1b}'), "{}", by_kind.out);
        assert!(!tenure(db, &["stats", "--kind", "other"]).out.contains("send"));
        let by_queue = json(db, &["stats", "--by", "queue", "--json"]);
        let row = &by_queue["rows"][0];
        assert_eq!((&row["queue"], &row["kind"], &row["completed"]), (&Value::from("mail"), &Value::Null, &Value::from(59)));
        assert_eq!((&row["run"]["count"], &row["run"]["p95_ms"]), (&Value::from(60), &Value::from(115.2)));
        assert_eq!((&by_queue["workers"][0]["claim"]["count"], &by_queue["workers"][0]["name"]), (&Value::from(9), &Value::Null));
        let by_minute = json(db, &["stats", "--by", "minute", "--since", "10m", "--json"]);
        assert_eq!(by_minute["rows"].as_array().expect("rows").len(), 1);
        assert_eq!(by_minute["rows"][0]["seconds"], 60.0);
        assert!(tenure(db, &["stats", "--by", "minute", "--since", "1d", "--step", "1h"]).out.contains("SINCE"));
        assert_eq!(json(db, &["stats", "--since", "1m", "--json"])["rows"].as_array().expect("rows").len(), 0);
    })
    .await;
}
