//! A queue that no job was ever in: its name may be misspelt.

use std::time::Duration;

use tenure::{Client, JobFilter, QueueInfo};

/// How long this may keep a command: where nothing of the queue waits, all jobs that are kept are looked through.
const LOOK: Duration = Duration::from_secs(2);
/// Names of other queues that are shown.
const NAMES_MAX: usize = 10;

/// Warns on stderr of each of these queues in which no job was ever, as far as the database remembers. That is allowed, and
/// right before the first job; whoever did not mean it sees the names that there are. A look that fails warns of nothing.
pub async fn warn<'a>(client: &Client, queues: impl IntoIterator<Item = &'a str>) {
    let look = async {
        for queue in queues {
            if let Ok(Some(warning)) = look_at(client, queue).await {
                eprintln!("tenure: {warning}");
            }
        }
    };
    let _ = tokio::time::timeout(LOOK, look).await;
}

async fn look_at(client: &Client, queue: &str) -> Result<Option<String>, tenure::Error> {
    let queues = client.queues().await?;
    if queues.iter().any(|known| known.queue == queue && has_jobs(known)) {
        return Ok(None);
    }
    let any = JobFilter { queue: Some(queue.to_owned()), limit: Some(1), ..JobFilter::default() };
    match client.list(&any).await?.is_empty() {
        true => Ok(Some(warning(queue, &queues))),
        false => Ok(None),
    }
}

fn has_jobs(queue: &QueueInfo) -> bool {
    queue.available + queue.scheduled + queue.held + queue.running + queue.dead > 0
}

fn warning(queue: &str, queues: &[QueueInfo]) -> String {
    let others: Vec<_> = queues.iter().filter(|other| has_jobs(other)).map(|other| other.queue.as_str()).collect();
    let shown = others.iter().take(NAMES_MAX).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let others = match others.len() {
        0 => "no other queue has jobs now".to_owned(),
        1..=NAMES_MAX => format!("queues with jobs: {shown}"),
        more => format!("queues with jobs: {shown} and {} more", more - NAMES_MAX),
    };
    format!("no job was ever in the queue {queue:?}, as far as the database remembers; is the name right? {others}")
}
