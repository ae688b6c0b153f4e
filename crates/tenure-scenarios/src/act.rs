//! What a job of the scenarios does: its payload says it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The payload of a scenario's job. Every run writes its start and its end into the probe table, whatever it does.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Act {
    /// Waits without blocking a thread, and stops when it is cancelled.
    Sleep { ms: u64 },
    /// Waits without blocking a thread, and does not listen when it is cancelled.
    Stubborn { ms: u64 },
    /// Burns CPU without yielding.
    Burn { ms: u64 },
    /// Blocks its thread without yielding.
    Block { ms: u64 },
    /// Blocks a thread for blocking work, as a part of the handler.
    Thread { ms: u64 },
    /// Kills its own process.
    Abort,
    /// Calls itself until the stack of its thread is used up.
    OverflowStack,
    /// Takes memory until there is none: [`WorkerOptions::address_space`](crate::WorkerOptions::address_space) says when.
    TakeMemory,
    /// Fills memory until the kernel ends its process: [`WorkerOptions::memory_group`](crate::WorkerOptions::memory_group) says when.
    FillMemory,
    /// Writes until its process is killed for it: [`WorkerOptions::file_size`](crate::WorkerOptions::file_size) says when.
    FillFile,
    /// Writes where no space is left.
    FullDisk,
    /// Panics.
    Panic { how: PanicHow },
    /// Fails with this text.
    Fail { text: FailText },
    /// Fails with this text and asks for no retry.
    FailForGood { text: String },
    /// Asks to be run again later.
    Snooze { ms: u64 },
    /// Snoozes so many times for no time at all, then fails in so many attempts, then succeeds. The process counts.
    SnoozeThenFail { snoozes: u64, failures: u16 },
    /// Writes a row into `effect` on a connection of its own, after waiting.
    Effect { after_ms: u64 },
    /// Writes a row into `effect` and completes in the same transaction; waits before it, and again between completion
    /// and commit.
    EffectOnce { after_ms: u64, hold_ms: u64 },
    /// Writes a row into `effect_plain` that commits at once, then one into `effect_once` with the completion.
    EffectTwice { after_ms: u64, hold_ms: u64 },
    /// Writes a row into `effect_plain` and completes in the ordinary way.
    EffectPlain { after_ms: u64 },
    /// Takes a connection of the pool that all handlers share, holds it, and enqueues a child on another.
    Child { hold_ms: u64 },
    /// Returns a text of so many bytes.
    Return { bytes: usize },
    /// The first attempt does one thing, the others another.
    FirstThen { first: Box<Act>, then: Box<Act> },
    /// One after another; the last one's result.
    Then { acts: Vec<Act> },
    /// Reports progress, then waits.
    Progress { value: i64, ms: u64 },
}

/// Ways to panic.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PanicHow {
    /// With a `&str`.
    Str,
    /// With a `String`.
    String,
    /// With a value that is no text.
    Value,
    /// After an await.
    AfterAwait,
    /// In a thread for blocking work, passed on by the handler.
    Blocking,
    /// In a thread for blocking work that is a part of the handler.
    Thread,
    /// In a destructor.
    Drop,
    /// While holding a mutex that every handler uses.
    WithMutex,
}

/// Texts to fail with.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailText {
    /// This text.
    Plain(String),
    /// So many bytes, in characters of three bytes.
    Long(usize),
    /// With a NUL in it.
    Nul,
    /// From bytes that are not UTF-8, as a program might print them.
    NotUtf8,
    /// An error with so many sources below it.
    Chain(usize),
    /// An error that panics when it is shown.
    PanicsWhenShown,
}

impl Act {
    /// [`Act::Sleep`] for this long.
    pub fn sleep(time: Duration) -> Act {
        Act::Sleep { ms: time.as_millis() as u64 }
    }

    /// The first attempt does this, the others `then`.
    pub fn first(self, then: Act) -> Act {
        Act::FirstThen { first: Box::new(self), then: Box::new(then) }
    }

    /// The payload as JSON.
    pub fn json(&self) -> String {
        serde_json::to_string(self).expect("an act is JSON")
    }
}
