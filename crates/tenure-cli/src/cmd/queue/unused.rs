//! A queue that has no jobs while others have: its name may be misspelt.

use std::time::Duration;

use tenure::{Client, QueueInfo};

/// How long this may keep a command.
const LOOK: Duration = Duration::from_secs(2);
/// Names of other queues that are shown.
const NAMES_MAX: usize = 10;

/// Warns on stderr of each of these queues in which no job is now, if there are jobs in others. That is allowed, and right
/// before the first job; whoever did not mean it sees the names that there are. A look that fails warns of nothing.
pub async fn warn<'a>(
    client: impl Future<Output = Result<Client, tenure::Error>>,
    queues: impl IntoIterator<Item = &'a str>,
) {
    let look = async { client.await.ok()?.queues().await.ok() };
    if let Ok(Some(known)) = tokio::time::timeout(LOOK, look).await {
        for warning in queues.into_iter().filter_map(|queue| warning(queue, &known)) {
            eprintln!("tenure: {warning}");
        }
    }
}

fn warning(queue: &str, known: &[QueueInfo]) -> Option<String> {
    let used: Vec<_> = known.iter().filter(|known| has_jobs(known)).map(|known| known.queue.as_str()).collect();
    if used.is_empty() || used.contains(&queue) {
        return None;
    }
    let shown = used.iter().take(NAMES_MAX).map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = match used.len().saturating_sub(NAMES_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(format!("no job is in the queue {queue:?} now; is the name right? queues with jobs: {shown}{more}"))
}

fn has_jobs(queue: &QueueInfo) -> bool {
    queue.available + queue.scheduled + queue.held + queue.running + queue.dead > 0
}
