//! A waiting job at another time.

use std::time::{Duration, SystemTime};

use super::Client;
use super::jobs::{column, no_such_job};
use crate::lifecycle::State;
use crate::store::jobs::RESCHEDULE;
use crate::{Error, ErrorCode, JobId, JobOptions};

/// When a waiting job is due instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// At this instant, by the database's clock; now when it has passed.
    To(SystemTime),
    /// When this time has passed from now; at most 10 years.
    By(Duration),
}

impl Client {
    /// Lets a job that waits be due at another time: one that is scheduled, waits for its retry, or was snoozed, and one that could run
    /// now. The job itself does not change. Answers where it waits now.
    ///
    /// # Errors
    /// `BadInput`: the time. `NotFound`: no such job. `Refused`: it does not wait for a time; the message says where it stands.
    pub async fn reschedule(&self, id: JobId, when: Moved) -> Result<State, Error> {
        let options = match when {
            Moved::To(instant) => JobOptions::new().run_at(instant),
            Moved::By(delay) => JobOptions::new().delay(delay),
        };
        options.check()?;
        self.move_job(id, options.run_at_micros(), options.delay_ms()).await
    }

    /// Lets a job that waits for a time run now.
    ///
    /// # Errors
    /// As [`reschedule`](Self::reschedule).
    pub async fn run_now(&self, id: JobId) -> Result<State, Error> {
        self.move_job(id, None, None).await
    }

    async fn move_job(&self, id: JobId, run_at_us: Option<i64>, delay_ms: Option<i64>) -> Result<State, Error> {
        let session = self.session().await?;
        let row = session.query_opt(&RESCHEDULE, &[&id, &run_at_us, &delay_ms]).await;
        let row = row.map_err(|e| Error::store(RESCHEDULE.name, e))?;
        let answer: Option<String> = row.map(|row| column(&row, 0)).transpose()?.flatten();
        let Some(answer) = answer else { return Err(no_such_job(id)) };
        match State::from_name(&answer) {
            Some(state @ (State::Available | State::Scheduled | State::Retrying | State::Snoozed)) => Ok(state),
            Some(state @ (State::Held | State::Running | State::Completed | State::Cancelled | State::Dead)) => {
                Err(Error::new(ErrorCode::Refused, format!("job {id} is {state}: it does not wait for a time"))
                    .with_help(way_out(state)))
            }
            None => Err(Error::internal(format!("reschedule answered {answer:?}"))),
        }
    }
}

fn way_out(state: State) -> &'static str {
    match state {
        State::Held => "it waits for something else",
        State::Running => "its handler may snooze it; or cancel it",
        _ => "requeue it: that makes a new job of it",
    }
}
