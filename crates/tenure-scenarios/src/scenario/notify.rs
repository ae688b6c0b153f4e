//! Wake-ups are hints of constant size: no enqueue fails because of what it would notify.

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_postgres::{AsyncMessage, NoTls};

use crate::protocol::Registration;
use crate::{Act, Bound, Measure, Stage};

/// Large payloads, very many jobs and queues in one transaction, long names: everything commits, and what listeners hear is small.
pub async fn small_wake_ups(stage: &Stage) -> Vec<Measure> {
    let queues: Vec<String> = (0..1_000).map(|n| format!("{n}-{}", "鼠".repeat(40))).collect();
    let hand = stage.hand(&Registration { queues: queues.clone(), ..Registration::default() }).await;
    let mut heard = listen(stage, hand.worker).await;
    hand.sql
        .execute("select tenure.sleep($1, $2::text::uuid, $3)", &[&hand.worker, &hand.token, &queues])
        .await
        .expect("asleep");
    stage.execute("insert into tenure.setting (name, value) values ('payload_bytes', '16777216')", &[]).await;
    let large = serde_json::json!({ "text": "x".repeat(10_000_000) }).to_string();
    stage.execute("select tenure.enqueue('act', $1::text::json, $2)", &[&large, &queues[0]]).await;
    stage.enqueue_to(&queues[1], &Act::Sleep { ms: 0 }, 5_000).await;
    let each = "select count(tenure.enqueue('act', '{}', q)) from unnest($1::text[]) q";
    let enqueued = stage.count(each, &[&queues]).await;
    let (mut longest, mut count) = (0, 0);
    while let Ok(Some(payload)) = tokio::time::timeout(std::time::Duration::from_secs(2), heard.recv()).await {
        longest = longest.max(payload);
        count += 1;
    }
    vec![
        Measure::count("jobs in 1,000 queues, enqueued in one transaction", 1_000, enqueued as usize),
        Measure::new("bytes of the longest notification", Bound::AtMost(200.0), longest as f64, ""),
        Measure::new("notifications heard", Bound::AtLeast(1.0), f64::from(count), ""),
    ]
}

/// Listens on the worker's channel; the lengths of what is heard.
async fn listen(stage: &Stage, worker: i64) -> mpsc::UnboundedReceiver<usize> {
    let (client, mut connection) = tokio_postgres::connect(stage.url(), NoTls).await.expect("a listener");
    let (tell, heard) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        let mut messages = futures_util::stream::poll_fn(move |cx| connection.poll_message(cx));
        while let Some(Ok(message)) = messages.next().await {
            if let AsyncMessage::Notification(n) = message {
                let _ = tell.send(n.channel().len() + n.payload().len());
            }
        }
    });
    client.batch_execute(&format!("listen tenure_{worker}")).await.expect("listening");
    // The session lives as long as its client.
    tokio::spawn(async move {
        std::future::pending::<()>().await;
        drop(client);
    });
    heard
}
