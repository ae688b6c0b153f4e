//! A model server as providers run them: it computes real vectors, bills every idempotency key once, and misbehaves.
//!
//! `POST /v1/embeddings` takes `{model, input: [text, …], metadata: {chunks: [name, …]}}` and the header
//! `Idempotency-Key`; a key that was answered before gets the stored answer and is not billed again. `GET /bill` gives
//! every billed line. Which requests are refused, slow or cut off is drawn from (seed, key, how often it was asked), so a
//! run with the same keys misbehaves in the same places whatever the order.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::net::TcpListener;

use super::text;
use crate::output;

/// The name of the only model.
pub const MODEL: &str = "hashed-ngrams-256";

/// The name on the bill of requests that were answered from store.
pub const REPLAYED: &str = "replayed";

const INPUTS_MAX: usize = 128;
const KEY_BYTES_MAX: usize = 255;

/// Out of 1,000 requests; the rest is answered at once.
const MISBEHAVIOUR: [(Mood, u32); 6] = [
    (Mood::RateLimited, 50),
    (Mood::FailedBefore, 30),
    (Mood::FailedAfter, 25),
    (Mood::DroppedBefore, 10),
    (Mood::DroppedAfter, 15),
    (Mood::Slow, 40),
];

/// How the server takes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mood {
    /// Answers at once.
    Good,
    /// 429 with `Retry-After`, nothing done.
    RateLimited,
    /// 5xx, nothing done.
    FailedBefore,
    /// 5xx although the work is done and billed.
    FailedAfter,
    /// The connection breaks, nothing done.
    DroppedBefore,
    /// The connection breaks although the work is done and billed.
    DroppedAfter,
    /// The right answer, late.
    Slow,
}

impl Mood {
    /// Its name on the bill.
    pub fn name(self) -> &'static str {
        match self {
            Mood::Good => "good",
            Mood::RateLimited => "rate_limited",
            Mood::FailedBefore => "failed_before",
            Mood::FailedAfter => "failed_after",
            Mood::DroppedBefore => "dropped_before",
            Mood::DroppedAfter => "dropped_after",
            Mood::Slow => "slow",
        }
    }
}

/// What `POST /v1/embeddings` takes.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    pub model: String,
    pub input: Vec<String>,
    #[serde(default)]
    pub metadata: Metadata,
}

/// The caller's own names for the inputs; they come back on the bill.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Metadata {
    #[serde(default)]
    pub chunks: Vec<String>,
}

/// What `POST /v1/embeddings` answers.
#[derive(Debug, Serialize, Deserialize)]
pub struct Answer {
    pub model: String,
    pub data: Vec<Embedding>,
}

/// The vector of one input.
#[derive(Debug, Serialize, Deserialize)]
pub struct Embedding {
    pub index: usize,
    pub embedding: Vec<f32>,
}

/// What `GET /bill` answers.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Bill {
    /// One for every input that was billed, in the order of billing.
    pub lines: Vec<BillLine>,
    /// How many different (chunk, model) are on the bill.
    pub distinct: usize,
    /// Requests by the server's mood, and how many were answered from store, in whatever mood.
    pub requests: BTreeMap<String, u64>,
}

/// One billed input.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BillLine {
    /// The request's idempotency key and the place of the input in the request.
    pub key: String,
    /// The caller's name for the input, or its hash where there was none.
    pub chunk: String,
    pub model: String,
}

/// Serves on a free port of 127.0.0.1, prints `listening on http://…` as the only line on stdout, and ends when stdin
/// does: a server whose demo is gone, however it went, must not stay.
///
/// # Errors
/// No port can be opened.
pub async fn run(seed: u64, rate: Option<u32>) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.context("model server: no port on 127.0.0.1")?;
    output::line(&format!("listening on http://{}", listener.local_addr()?))?;
    tokio::select! {
        served = axum::serve(listener, router(seed, rate)) => served.context("model server"),
        () = crate::process::stdin_closed() => Ok(()),
    }
}

fn router(seed: u64, rate: Option<u32>) -> Router {
    let taken = Mutex::new((f64::from(rate.unwrap_or_default()), Instant::now()));
    let server = Arc::new(Server { seed, rate, taken, book: Mutex::default() });
    Router::new().route("/v1/embeddings", post(embeddings)).route("/bill", get(bill)).with_state(server)
}

struct Server {
    seed: u64,
    /// Requests that it takes in each second; none: as it likes.
    rate: Option<u32>,
    /// How many it takes at once now, at most as many as in a second, and when that was counted.
    taken: Mutex<(f64, Instant)>,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    asked: HashMap<String, u32>,
    stored: HashMap<String, Stored>,
    lines: Vec<BillLine>,
    requests: BTreeMap<String, u64>,
    unkeyed: u64,
}

struct Stored {
    request: u64,
    answer: Bytes,
}

impl Server {
    /// Its mood; the rate decides on a 429 where there is one.
    fn mood(&self, key: &str, asked: u32) -> Mood {
        let mood = mood(self.seed, key, asked);
        let Some(rate) = self.rate.map(f64::from) else { return mood };
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let left = (taken.0 + now.duration_since(taken.1).as_secs_f64() * rate).min(rate);
        let enough = left >= 1.0;
        *taken = (if enough { left - 1.0 } else { left }, now);
        match mood {
            _ if !enough => Mood::RateLimited,
            Mood::RateLimited => Mood::Good,
            mood => mood,
        }
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn bill(State(server): State<Arc<Server>>) -> Json<Bill> {
    let book = server.book();
    let mut distinct: Vec<_> = book.lines.iter().map(|line| (&line.chunk, &line.model)).collect();
    distinct.sort_unstable();
    distinct.dedup();
    Json(Bill { lines: book.lines.clone(), distinct: distinct.len(), requests: book.requests.clone() })
}

async fn embeddings(State(server): State<Arc<Server>>, headers: HeaderMap, Json(request): Json<Request>) -> Response {
    if let Some(refusal) = refusal(&request) {
        return refuse(StatusCode::BAD_REQUEST, &refusal);
    }
    let (key, asked) = match server.book().admit(&headers) {
        Ok(admitted) => admitted,
        Err(message) => return refuse(StatusCode::BAD_REQUEST, &message),
    };
    let mood = server.mood(&key, asked);
    if mood == Mood::Slow {
        // sleep: the slowness that a real provider shows now and then.
        tokio::time::sleep(slowness(server.seed, &key, asked)).await;
    }
    *server.book().requests.entry(mood.name().to_owned()).or_default() += 1;
    match mood {
        Mood::RateLimited => rate_limited(server.seed, &key, asked),
        Mood::FailedBefore => refuse(StatusCode::SERVICE_UNAVAILABLE, "overloaded, nothing was done"),
        Mood::DroppedBefore => dropped(),
        Mood::FailedAfter => match server.book().answer(&key, &request) {
            Ok(_) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "internal error"),
            Err(message) => refuse(StatusCode::UNPROCESSABLE_ENTITY, &message),
        },
        Mood::DroppedAfter => match server.book().answer(&key, &request) {
            Ok(_) => dropped(),
            Err(message) => refuse(StatusCode::UNPROCESSABLE_ENTITY, &message),
        },
        Mood::Good | Mood::Slow => match server.book().answer(&key, &request) {
            Ok(answer) => ([(header::CONTENT_TYPE, "application/json")], answer).into_response(),
            Err(message) => refuse(StatusCode::UNPROCESSABLE_ENTITY, &message),
        },
    }
}

impl Book {
    /// The key of a request and how often it was asked before. A request without a key gets one that nobody repeats.
    fn admit(&mut self, headers: &HeaderMap) -> Result<(String, u32), String> {
        let key = match headers.get("idempotency-key").map(|key| key.to_str()) {
            Some(Ok(key)) if !key.is_empty() && key.len() <= KEY_BYTES_MAX => key.to_owned(),
            Some(_) => return Err(format!("Idempotency-Key: want 1 to {KEY_BYTES_MAX} visible ASCII characters")),
            None => {
                self.unkeyed += 1;
                format!("without key {}", self.unkeyed)
            }
        };
        let asked = self.asked.entry(key.clone()).or_default();
        *asked += 1;
        Ok((key, *asked - 1))
    }

    /// The stored answer of this key; else does the work, bills it and stores the answer. All of it under one lock and
    /// without waiting: a caller that goes away, or asks twice at once, finds either nothing or everything done.
    fn answer(&mut self, key: &str, request: &Request) -> Result<Bytes, String> {
        let request_hash = hash_of_request(request);
        if let Some(stored) = self.stored.get(key) {
            if stored.request != request_hash {
                return Err(format!("Idempotency-Key {key:?} was used for a different request"));
            }
            *self.requests.entry(REPLAYED.to_owned()).or_default() += 1;
            return Ok(stored.answer.clone());
        }
        let answer = Bytes::from(compute(request));
        for (index, input) in request.input.iter().enumerate() {
            let named = request.metadata.chunks.get(index).cloned();
            self.lines.push(BillLine {
                key: format!("{key}/{index}"),
                chunk: named.unwrap_or_else(|| format!("{:016x}", hash(&[input.as_bytes()]))),
                model: request.model.clone(),
            });
        }
        self.stored.insert(key.to_owned(), Stored { request: request_hash, answer: answer.clone() });
        Ok(answer)
    }
}

fn refusal(request: &Request) -> Option<String> {
    if request.model != MODEL {
        return Some(format!("model {:?} does not exist; this server has {MODEL:?}", request.model));
    }
    if request.input.is_empty() || request.input.len() > INPUTS_MAX {
        return Some(format!("input has {} texts; want 1 to {INPUTS_MAX}", request.input.len()));
    }
    let chunks = request.metadata.chunks.len();
    (chunks != 0 && chunks != request.input.len())
        .then(|| format!("metadata.chunks has {chunks} names for {} inputs", request.input.len()))
}

fn compute(request: &Request) -> Vec<u8> {
    let vectors = request.input.iter().map(|input| text::vector(input));
    let data = vectors.enumerate().map(|(index, embedding)| Embedding { index, embedding }).collect();
    serde_json::to_vec(&Answer { model: request.model.clone(), data }).expect("numbers and a name are JSON")
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"error": {"message": message, "code": status.as_u16()}}))).into_response()
}

fn rate_limited(seed: u64, key: &str, asked: u32) -> Response {
    let seconds = 1 + draw(seed, key, asked, "retry-after") % 2;
    let mut response = refuse(StatusCode::TOO_MANY_REQUESTS, "rate limit reached");
    response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    response
}

/// An answer that breaks off: the body fails before its first byte, and the connection is closed.
fn dropped() -> Response {
    let broken = futures_util::stream::once(async { Err::<Bytes, _>(io::Error::other("connection dropped")) });
    Body::from_stream(broken).into_response()
}

fn mood(seed: u64, key: &str, asked: u32) -> Mood {
    let mut drawn = draw(seed, key, asked, "mood") as u32 % 1_000;
    for (mood, share) in MISBEHAVIOUR {
        if drawn < share {
            return mood;
        }
        drawn -= share;
    }
    Mood::Good
}

fn slowness(seed: u64, key: &str, asked: u32) -> Duration {
    Duration::from_millis(500 + draw(seed, key, asked, "slowness") % 1_500)
}

fn draw(seed: u64, key: &str, asked: u32, what: &str) -> u64 {
    let mixed = hash(&[&seed.to_le_bytes(), key.as_bytes(), &asked.to_le_bytes(), what.as_bytes()]);
    fastrand::Rng::with_seed(mixed).u64(..) >> 32
}

fn hash_of_request(request: &Request) -> u64 {
    let texts = request.input.iter().chain(&request.metadata.chunks).chain([&request.model]);
    hash(&texts.map(|text| text.as_bytes()).collect::<Vec<_>>())
}

fn hash(parts: &[&[u8]]) -> u64 {
    use std::hash::{DefaultHasher, Hash as _, Hasher as _};
    let mut hasher = DefaultHasher::new(); // the same keys in every process
    parts.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_of_the_demo_tells_the_shares_as_they_are() {
        let share = |moods: &[Mood]| -> u32 {
            MISBEHAVIOUR.iter().filter(|(mood, _)| moods.contains(mood)).map(|(_, share)| share).sum()
        };
        let after = share(&[Mood::FailedAfter, Mood::DroppedAfter]);
        assert_eq!(after * 2, after + share(&[Mood::FailedBefore, Mood::DroppedBefore]));
        let all: u32 = MISBEHAVIOUR.iter().map(|(_, share)| share).sum();
        assert_eq!((1_000.0 / f64::from(all)).round(), 6.0);
        let page = include_str!("../../../../docs/guide/demo.md");
        assert!(
            page.contains("about one request in six") && page.contains("half of the 5xx and\n  broken connections")
        );
    }

    fn request(texts: &[&str]) -> Request {
        let chunks = (0..texts.len()).map(|n| format!("7:{n}")).collect();
        let input = texts.iter().map(|&text| text.to_owned()).collect();
        Request { model: MODEL.into(), input, metadata: Metadata { chunks } }
    }

    #[test]
    fn a_key_is_billed_once_and_gets_the_same_answer() {
        let mut book = Book::default();
        let first = book.answer("k", &request(&["one", "two"])).unwrap();
        let again = book.answer("k", &request(&["one", "two"])).unwrap();
        assert_eq!(first, again);
        let keys: Vec<_> = book.lines.iter().map(|line| (line.key.as_str(), line.chunk.as_str())).collect();
        assert_eq!(keys, [("k/0", "7:0"), ("k/1", "7:1")]);
        assert_eq!(book.requests[REPLAYED], 1);
    }

    #[test]
    fn a_key_used_for_another_request_is_refused() {
        let mut book = Book::default();
        book.answer("k", &request(&["one"])).unwrap();
        assert!(book.answer("k", &request(&["two"])).unwrap_err().contains("different request"));
        assert_eq!(book.lines.len(), 1);
    }

    #[test]
    fn moods_depend_on_seed_key_and_time_alone_and_come_in_their_shares() {
        assert_eq!(mood(1, "k", 0), mood(1, "k", 0));
        let mut counts = HashMap::new();
        for n in 0..20_000 {
            *counts.entry(mood(1, &format!("key {n}"), 0)).or_insert(0_u32) += 1;
        }
        for (mood, share) in MISBEHAVIOUR {
            let expected = share * 20;
            assert!(counts[&mood].abs_diff(expected) < expected / 3, "{mood:?}: {} of {expected}", counts[&mood]);
        }
    }

    #[test]
    fn bad_requests_are_named() {
        let wrong_model = Request { model: "gpt".into(), ..request(&["one"]) };
        assert!(refusal(&wrong_model).unwrap().contains("\"gpt\""));
        assert!(refusal(&request(&[])).unwrap().contains("0 texts"));
        let names = Request { input: vec!["a".into(), "b".into()], ..request(&["one"]) };
        assert!(refusal(&names).unwrap().contains("1 names for 2 inputs"));
        assert!(refusal(&request(&["one"])).is_none());
    }

    /// A server in this process, and a key for which it has the given mood at the first request.
    async fn serve(wanted: Mood) -> (String, String) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router(1, None)).await });
        let key = (0..).map(|n| format!("key-{n}")).find(|key| mood(1, key, 0) == wanted).unwrap();
        (url, key)
    }

    async fn ask(url: &str, key: &str) -> reqwest::Result<reqwest::Response> {
        let post = reqwest::Client::new().post(format!("{url}/v1/embeddings"));
        post.header("Idempotency-Key", key).json(&request(&["one"])).send().await
    }

    async fn billed(url: &str) -> usize {
        reqwest::get(format!("{url}/bill")).await.unwrap().json::<Bill>().await.unwrap().lines.len()
    }

    async fn check(mood: Mood, status: u16, billed_lines: usize) {
        let (url, key) = serve(mood).await;
        let answer = ask(&url, &key).await.unwrap();
        assert_eq!(answer.status().as_u16(), status, "{mood:?}");
        assert_eq!(answer.headers().contains_key("retry-after"), mood == Mood::RateLimited);
        if status == 200 {
            let answer: Answer = answer.json().await.unwrap();
            assert_eq!(answer.data[0].embedding.len(), text::DIMENSIONS);
        }
        assert_eq!(billed(&url).await, billed_lines, "{mood:?}");
    }

    #[tokio::test]
    async fn each_mood_is_what_it_says_and_bills_what_it_did() {
        check(Mood::Good, 200, 1).await;
        check(Mood::RateLimited, 429, 0).await;
        check(Mood::FailedBefore, 503, 0).await;
        check(Mood::FailedAfter, 500, 1).await;
    }

    #[tokio::test]
    async fn a_dropped_connection_gives_no_answer() {
        for (mood, billed_lines) in [(Mood::DroppedBefore, 0), (Mood::DroppedAfter, 1)] {
            let (url, key) = serve(mood).await;
            let answer = match ask(&url, &key).await {
                Ok(answer) => answer.bytes().await.map(|_| ()),
                Err(error) => Err(error),
            };
            assert!(answer.is_err(), "{mood:?}");
            assert_eq!(billed(&url).await, billed_lines, "{mood:?}");
        }
    }
}
