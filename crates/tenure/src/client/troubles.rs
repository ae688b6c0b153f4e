//! Schedules that do not fire although they should.

use std::time::{Duration, SystemTime};

use tokio_postgres::Row;

use super::Client;
use super::jobs::{column, page_size};
use super::schedules::read_schedule;
use crate::store::schedule::{SCHEDULE_COLUMNS, TROUBLED_SCHEDULES};
use crate::{Error, ScheduleInfo};

/// Rows of each state that are read at a time: one more than are told at most.
const PAGE: i32 = 1_001;
/// Pages of schedules whose next time nobody has computed, at most: a hundred thousand of them are computed in a few seconds.
const PAGES_MAX: usize = 100;
/// A time that came less long ago is not overdue.
const PATIENCE: Duration = Duration::from_secs(10);

const FAILING: &str = "failing";

/// A schedule that cannot fire, or whose time came and nobody fired it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TroubledSchedule {
    /// Its name.
    pub name: String,
    /// `failing`: it cannot fire, see [`error`](Self::error). `overdue`: its time came 10 s ago and nobody fired it, as when no worker
    /// lives.
    pub state: String,
    /// Since when; of one that is overdue, the time that has not fired.
    pub since: SystemTime,
    /// Why it cannot fire.
    pub error: Option<String>,
}

/// What [`Client::troubled_schedules`] found.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TroubledSchedules {
    /// First those that cannot fire, then those that are overdue, the oldest troubles of each first.
    pub schedules: Vec<TroubledSchedule>,
    /// There are, or may be, more of them: only so many were asked for, or not all could be looked at.
    pub cut: bool,
}

impl Client {
    /// Schedules that cannot fire, and those that are overdue; at most `limit` of each: 1 to 1,000, 100 when not given. Where no worker has
    /// computed when a schedule is due this does, for up to 100,000 schedules.
    ///
    /// # Errors
    /// `BadInput`: the limit.
    pub async fn troubled_schedules(&self, limit: Option<usize>) -> Result<TroubledSchedules, Error> {
        let limit = page_size(limit)? as usize;
        let session = self.session().await?;
        let (mut failing, mut overdue, mut is_partial) = (Vec::new(), Vec::new(), true);
        let mut after: (Option<SystemTime>, Option<i64>) = (None, None);
        for _ in 0..PAGES_MAX {
            let rows = session.query(&TROUBLED_SCHEDULES, &[&PAGE, &after.0, &after.1]).await;
            let rows = rows.map_err(|e| Error::store(TROUBLED_SCHEDULES.name, e))?;
            let mut unplanned = 0;
            for row in &rows {
                let found = Found::read(row)?;
                if found.is_unplanned() {
                    after = (Some(found.troubled.since), Some(found.id));
                    unplanned += 1;
                }
                let Some(troubled) = found.judged(row)? else { continue };
                if troubled.state == FAILING { failing.push(troubled) } else { overdue.push(troubled) }
            }
            is_partial = unplanned == PAGE as usize;
            if !is_partial {
                break;
            }
        }
        let cut = is_partial || failing.len() > limit || overdue.len() > limit;
        Ok(TroubledSchedules { schedules: [oldest(failing, limit), oldest(overdue, limit)].concat(), cut })
    }
}

fn oldest(mut troubled: Vec<TroubledSchedule>, limit: usize) -> Vec<TroubledSchedule> {
    troubled.sort_by_key(|schedule| schedule.since);
    troubled.truncate(limit);
    troubled
}

/// A row of the function, before the rules were asked.
struct Found {
    id: i64,
    troubled: TroubledSchedule,
}

impl Found {
    fn read(row: &Row) -> Result<Found, Error> {
        let at = |n: usize| SCHEDULE_COLUMNS + n;
        let troubled = TroubledSchedule {
            name: column(row, at(1))?,
            state: column(row, at(2))?,
            since: column(row, at(3))?,
            error: column(row, at(4))?,
        };
        Ok(Found { id: column(row, at(0))?, troubled })
    }

    /// SQL does not know whether its time has come.
    fn is_unplanned(&self) -> bool {
        self.troubled.state == "unplanned"
    }

    /// None: its time has not come, or it was removed in between, and has no columns.
    fn judged(self, row: &Row) -> Result<Option<TroubledSchedule>, Error> {
        match self.is_unplanned() {
            false => Ok(Some(self.troubled)),
            true if column::<Option<String>>(row, 0)?.is_none() => Ok(None),
            true => Ok(of_unplanned(&read_schedule(row)?, self.troubled.since, column(row, SCHEDULE_COLUMNS + 5)?)),
        }
    }
}

/// One whose next time nobody has computed since this instant.
fn of_unplanned(info: &ScheduleInfo, since: SystemTime, now: SystemTime) -> Option<TroubledSchedule> {
    let troubled = |state: &str, since: SystemTime, error: Option<String>| TroubledSchedule {
        name: info.name.clone(),
        state: state.to_owned(),
        since,
        error,
    };
    match info.read_rule() {
        Err(error) => Some(troubled(FAILING, since, Some(error.message().to_owned()))),
        Ok(_) => {
            let next = info.next_time().filter(|next| *next + PATIENCE <= now)?;
            Some(troubled("overdue", next, None))
        }
    }
}
