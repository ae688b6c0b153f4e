//! One search over what a run indexed.

use std::time::{Duration, SystemTime};

use anyhow::{Result, bail};
use serde::Serialize;
use tenure::{Fail, Verdict};
use tokio_postgres::Client;

use super::model_client::ModelClient;
use super::model_server::MODEL;

/// What is asked when nobody asks.
pub const QUERY: &str = "how does a worker lose its lease";

const TRIES_MAX: u16 = 10;
const SNIPPET_CHARS: usize = 110;

/// A chunk that fits the query.
#[derive(Debug, Serialize)]
pub struct Hit {
    /// Cosine of the angle between the two vectors: 1 is the same direction.
    pub score: f64,
    pub file: String,
    pub chunk: i32,
    pub snippet: String,
}

/// The best chunk of each of the five best documents.
///
/// # Errors
/// The model server gives no vector, or the database fails.
pub async fn search(client: &Client, model: &ModelClient, run: &str, query: &str) -> Result<Vec<Hit>> {
    let vector = vector_of(model, run, query).await?;
    let select = "
        with scored as (
          select v.document, v.chunk, tenure_demo.cosine(v.elements, $1) as score
          from tenure_demo.vector v where v.model = $2
        ), best as (
          select distinct on (document) document, chunk, score from scored order by document, score desc, chunk
        )
        select b.score, d.name, b.chunk, c.text
        from best b
        join tenure_demo.document d on d.id = b.document
        join tenure_demo.chunk c on c.document = b.document and c.number = b.chunk
        order by b.score desc, d.name limit 5";
    let rows = client.query(select, &[&vector, &MODEL]).await?;
    let hits = rows.iter().map(|row| Hit {
        score: row.get::<_, Option<f64>>(0).unwrap_or_default(),
        file: row.get(1),
        chunk: row.get(2),
        snippet: snippet(row.get(3), query),
    });
    Ok(hits.collect())
}

/// The model server misbehaves here too, and nobody retries for us: this is no job.
async fn vector_of(model: &ModelClient, run: &str, query: &str) -> Result<Vec<f32>> {
    let key = format!("search-{run}");
    let mut last = String::new();
    for attempt in 1..=TRIES_MAX {
        let fail: Fail = match model.embed(&key, vec![query.to_owned()], vec!["search".to_owned()], false).await {
            Ok(mut vectors) => return Ok(vectors.swap_remove(0)),
            Err(fail) => fail,
        };
        last = fail.message().to_owned();
        if fail.verdict() == Verdict::Permanent {
            break;
        }
        // No database is asked here, so that the clock at hand has to do.
        let until = |at: SystemTime| at.duration_since(SystemTime::now()).unwrap_or_default();
        let asked_for = fail.verdict().delay().or_else(|| fail.verdict().run_at().map(until));
        let delay = asked_for.unwrap_or_else(|| super::pipeline::retry_policy().delay(attempt, fastrand::f64()));
        // sleep: the provider said how long to wait.
        tokio::time::sleep(delay.min(Duration::from_secs(5))).await;
    }
    bail!("the model server gave no vector for the search: {last}")
}

/// The part of a chunk where most of the query's words are, on one line.
fn snippet(text: &str, query: &str) -> String {
    let words: Vec<String> = query.split_whitespace().filter(|word| word.len() > 3).map(str::to_lowercase).collect();
    let flat: Vec<&str> = text.split_whitespace().collect();
    let matches = |word: &str| words.iter().any(|wanted| word.to_lowercase().contains(wanted.as_str()));
    let window = 14;
    let count = |from: usize| flat[from..].iter().take(window).filter(|word| matches(word)).count();
    let best = (0..flat.len()).rev().max_by_key(|&from| count(from)).unwrap_or(0);
    let start = best.saturating_sub(2);
    let mut snippet = String::from(if start > 0 { "… " } else { "" });
    let text = flat[start..].join(" ");
    match text.char_indices().nth(SNIPPET_CHARS) {
        Some((end, _)) => snippet.push_str(&format!("{} …", &text[..end])),
        None => snippet.push_str(&text),
    }
    snippet
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snippet_shows_where_the_words_are() {
        let text = format!(
            "{} nobody knows where the\nsilver fox sleeps at night {}",
            "lorem ".repeat(80),
            "ipsum ".repeat(80)
        );
        let snippet = snippet(&text, "the fox that sleeps at night");
        assert!(snippet.contains("where the silver fox sleeps"), "{snippet}");
        assert!(snippet.chars().count() <= SNIPPET_CHARS + 4, "{snippet}");
    }

    #[test]
    fn short_or_foreign_text_gives_a_snippet_too() {
        assert_eq!(snippet("one", "fox"), "one");
        assert_eq!(snippet("", "fox"), "");
        assert!(snippet(&"é".repeat(500), "x").ends_with('…'));
    }
}
