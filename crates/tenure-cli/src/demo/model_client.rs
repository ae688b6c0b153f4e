//! How the pipeline asks the model server: with an idempotency key, and with an eye on what the answer means.

use std::time::Duration;

use tenure::{Fail, classify};

use super::model_server::{Answer, Bill, MODEL, Metadata, Request};
use super::text::DIMENSIONS;

/// Longer than the slowest answer, short enough that a hanging server costs a retry and not the run.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The model server, as a client sees it.
#[derive(Clone)]
pub struct ModelClient {
    http: reqwest::Client,
    url: String,
}

impl ModelClient {
    /// `url` without a path.
    pub fn new(url: &str) -> Result<Self, reqwest::Error> {
        // No proxy: the server is on this machine, whatever HTTP_PROXY says.
        let http = reqwest::Client::builder().timeout(ANSWER_TIMEOUT).no_proxy().build()?;
        Ok(ModelClient { http, url: url.to_owned() })
    }

    /// The vectors of these texts, in their order. `names` are the caller's own names for the texts; they come back on
    /// the bill.
    ///
    /// # Errors
    /// What a job should do about it: a refusal that may pass and a broken connection are retries, not before the
    /// moment that `Retry-After` names, of the whole fleet when the job stands under a limit (`limited`); an answer that does not fit the question is permanent.
    pub async fn embed(
        &self,
        key: &str,
        texts: Vec<String>,
        names: Vec<String>,
        limited: bool,
    ) -> Result<Vec<Vec<f32>>, Fail> {
        let wanted = texts.len();
        let request = Request { model: MODEL.to_owned(), input: texts, metadata: Metadata { chunks: names } };
        let post = self.http.post(format!("{}/v1/embeddings", self.url)).header("Idempotency-Key", key);
        let answer = post.json(&request).send().await?;
        let retry_after = answer.headers().get("retry-after").and_then(|value| value.to_str().ok());
        if let (true, 429) = (limited, answer.status().as_u16()) {
            // The limit is slowed down for everybody, and the job has not failed.
            let wait = retry_after.and_then(|seconds| seconds.parse().ok()).unwrap_or(1);
            return Err(Fail::throttled_by(Duration::from_secs(wait)));
        }
        classify::http_status(answer.status().as_u16(), retry_after)?;
        let answer: Answer = answer.json().await?;
        let vectors: Vec<_> = answer.data.into_iter().map(|item| item.embedding).collect();
        if vectors.len() != wanted || vectors.iter().any(|vector| vector.len() != DIMENSIONS) {
            return Err(Fail::permanent(format!("the model answered {} vectors for {wanted} texts", vectors.len())));
        }
        Ok(vectors)
    }

    /// Everything that was billed so far.
    pub async fn bill(&self) -> Result<Bill, reqwest::Error> {
        self.http.get(format!("{}/bill", self.url)).send().await?.error_for_status()?.json().await
    }
}
