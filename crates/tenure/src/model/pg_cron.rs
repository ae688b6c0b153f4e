//! Whether pg_cron can take the place of workers that are not up: what was found, and what to do about it.

/// How long ago the last call of `tick()` may be: pg_cron comes each minute.
const SEEN_MAX_S: i64 = 180;

/// One point of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// What was looked at.
    pub what: &'static str,
    /// How it is.
    pub finding: Finding,
    /// What was found, in words.
    pub found: String,
    /// What to do; nothing when all is well.
    pub way_out: Option<String>,
}

/// How a point is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// As it has to be.
    Good,
    /// This role may not look, or it depends on others.
    Unknown,
    /// In the way.
    Wrong,
}

impl Finding {
    /// Its name in JSON and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Finding::Good => "good",
            Finding::Unknown => "unknown",
            Finding::Wrong => "wrong",
        }
    }
}

/// What the database says.
#[derive(Clone, Debug)]
pub(crate) struct CronFacts {
    pub(crate) schema: String,
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) available: Option<String>,
    pub(crate) installed: Option<String>,
    pub(crate) may_use: bool,
    pub(crate) may_schedule: bool,
    /// None, as with the two below: not readable for the schema's owner.
    pub(crate) loaded: Option<bool>,
    pub(crate) cron_database: Option<String>,
    pub(crate) zone: Option<String>,
    /// When tick was called last; none: never.
    pub(crate) seen_s_ago: Option<i64>,
    pub(crate) entries: Vec<TickEntry>,
}

/// An entry that calls tick.
#[derive(Clone, Debug)]
pub(crate) struct TickEntry {
    pub(crate) id: i64,
    pub(crate) schedule: String,
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) active: bool,
    pub(crate) role_exists: bool,
    pub(crate) may_tick: bool,
    pub(crate) status: Option<String>,
    pub(crate) message: Option<String>,
}

impl CronFacts {
    /// All points, in the order in which they have to be put right.
    pub(crate) fn checks(&self) -> Vec<Check> {
        let mut checks = vec![self.package(), self.library(), self.extension(), self.rights(), self.zone()];
        match &self.entries[..] {
            [] => checks.push(self.no_entry()),
            entries => entries.iter().for_each(|entry| checks.extend(self.entry(entry))),
        }
        checks.push(self.seen());
        checks
    }

    fn package(&self) -> Check {
        match &self.available {
            Some(version) => good("package", format!("pg_cron {version} is there")),
            None => wrong(
                "package",
                "this server has no pg_cron".to_owned(),
                "install it (Debian: apt-get install postgresql-15-cron, for PostgreSQL 15); of a managed server, see whether its provider offers it",
            ),
        }
    }

    fn library(&self) -> Check {
        match self.loaded {
            Some(true) => good("library", "shared_preload_libraries has pg_cron".to_owned()),
            Some(false) => wrong(
                "library",
                "shared_preload_libraries has no pg_cron".to_owned(),
                "add pg_cron to it and restart the server; of a managed server, in its parameter group or flags",
            ),
            None => unknown(
                "library",
                "the owner of the schema may not read shared_preload_libraries".to_owned(),
                "whether it is loaded shows below, by when tick() was called last",
            ),
        }
    }

    fn extension(&self) -> Check {
        match (&self.installed, &self.cron_database) {
            (Some(version), _) => good("extension", format!("version {version} in database {:?}", self.database)),
            (None, Some(database)) if *database != self.database => unknown(
                "extension",
                format!("pg_cron lives in database {database:?}, and this is {:?}", self.database),
                &format!(
                    "as it is, in {database:?}: select cron.schedule_in_database('tenure', '* * * * *', 'select {}.tick()', '{}')",
                    self.schema, self.database
                ),
            ),
            (None, _) => wrong(
                "extension",
                format!("database {:?} has no extension pg_cron", self.database),
                &format!(
                    "set cron.database_name = '{}' and restart, then: create extension pg_cron (as a superuser, or the role that a managed server names for it)",
                    self.database
                ),
            ),
        }
    }

    fn rights(&self) -> Check {
        if self.installed.is_none() {
            return unknown("rights", "without the extension there are none".to_owned(), "see above");
        }
        match (self.may_use, self.may_schedule) {
            (true, true) => good("rights", format!("{:?} may schedule", self.role)),
            (false, _) => wrong(
                "rights",
                format!("{:?} may not use the schema cron", self.role),
                &format!("grant usage on schema cron to {}", self.role),
            ),
            (true, false) => wrong(
                "rights",
                format!("{:?} may not call cron.schedule", self.role),
                &format!("grant execute on function cron.schedule(text, text, text) to {}", self.role),
            ),
        }
    }

    fn zone(&self) -> Check {
        match self.zone.as_deref() {
            Some(zone) if ["GMT", "UTC", "Etc/UTC"].contains(&zone) => {
                good("zone", format!("pg_cron's times are in {zone}"))
            }
            Some(zone) => unknown(
                "zone",
                format!("pg_cron's times are in {zone}"),
                "of no matter for tick(), and for schedules, which have zones of their own; times of pg_cron's other entries are in it, and those that its clock leaves out or shows twice are pg_cron's to judge",
            ),
            None => unknown(
                "zone",
                "the owner of the schema may not read cron.timezone".to_owned(),
                "of no matter for tick(); times of pg_cron's other entries are in GMT unless the server says otherwise",
            ),
        }
    }

    /// pg_cron lives in another database of the server, and what it runs is not seen from here.
    fn lives_elsewhere(&self) -> bool {
        self.installed.is_none() && self.cron_database.as_ref().is_some_and(|database| *database != self.database)
    }

    fn no_entry(&self) -> Check {
        if self.lives_elsewhere() {
            return unknown(
                "entry",
                "pg_cron's entries stand in its own database".to_owned(),
                "see there: select * from cron.job; whether they call tick() here shows below",
            );
        }
        wrong(
            "entry",
            "no entry that this role may see calls tick()".to_owned(),
            &format!("select cron.schedule('{0}', '* * * * *', 'select {0}.tick()')", self.schema),
        )
    }

    fn entry(&self, entry: &TickEntry) -> Vec<Check> {
        let name = format!("entry {} ({}, as {})", entry.id, entry.schedule, entry.role);
        let mut checks = Vec::new();
        if entry.database != self.database {
            checks.push(unknown(
                "entry",
                format!("{name} runs in database {:?}", entry.database),
                "it is of no use to this one",
            ));
            return checks;
        }
        if !entry.role_exists {
            let way_out = format!(
                "remove it as a superuser (delete from cron.job where jobid = {}), and schedule it anew as a role that exists",
                entry.id
            );
            checks.push(wrong(
                "entry",
                format!("{name} cannot run: there is no role {:?} any more", entry.role),
                &way_out,
            ));
        } else if !entry.active {
            let way_out = format!("select cron.alter_job({}, active => true)", entry.id);
            checks.push(wrong("entry", format!("{name} is switched off"), &way_out));
        } else if !entry.may_tick {
            let way_out = format!("grant {}_admin to {}, after `tenure migrate --roles`", self.schema, entry.role);
            checks.push(wrong("entry", format!("{name} may not call {}.tick()", self.schema), &way_out));
        } else {
            checks.push(good("entry", name));
        }
        if entry.status.as_deref() == Some("failed") {
            let message = entry.message.as_deref().unwrap_or_default().trim();
            checks.push(wrong(
                "last run",
                format!("entry {} failed: {message}", entry.id),
                "when it cannot connect: let its role in from cron.host by pg_hba.conf or a .pgpass of the server's user, or set cron.use_background_workers = on, and restart",
            ));
        }
        checks
    }

    /// An entry that can run, and has not yet. When it was made pg_cron does not say.
    fn is_new(&self, entry: &TickEntry) -> bool {
        let runs_here = entry.database == self.database && entry.active && entry.role_exists && entry.may_tick;
        runs_here && entry.status.is_none()
    }

    fn seen(&self) -> Check {
        const PROCESS: &str =
            "is pg_cron's process up (select 1 from pg_stat_activity where application_name like 'pg_cron%')?";
        match self.seen_s_ago {
            Some(s) if s <= SEEN_MAX_S => good("call", format!("tick() was called {} s ago", s.max(0))),
            None if self.entries.iter().any(|entry| self.is_new(entry)) => unknown(
                "call",
                "tick() was not called yet by an entry that is there".to_owned(),
                &format!("look again in a minute or two; if it stays so, {PROCESS}"),
            ),
            Some(s) => {
                wrong("call", format!("tick() was called last {s} s ago"), &format!("call it each minute; {PROCESS}"))
            }
            None => wrong(
                "call",
                "tick() was never called".to_owned(),
                "wait for the next minute; then see cron.job_run_details",
            ),
        }
    }
}

fn good(what: &'static str, found: String) -> Check {
    Check { what, finding: Finding::Good, found, way_out: None }
}

fn unknown(what: &'static str, found: String, way_out: &str) -> Check {
    Check { what, finding: Finding::Unknown, found, way_out: Some(way_out.to_owned()) }
}

fn wrong(what: &'static str, found: String, way_out: &str) -> Check {
    Check { what, finding: Finding::Wrong, found, way_out: Some(way_out.to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn well() -> CronFacts {
        let entry = TickEntry {
            id: 3,
            schedule: "* * * * *".to_owned(),
            database: "shop".to_owned(),
            role: "ada".to_owned(),
            active: true,
            role_exists: true,
            may_tick: true,
            status: Some("succeeded".to_owned()),
            message: None,
        };
        CronFacts {
            schema: "tenure".to_owned(),
            database: "shop".to_owned(),
            role: "ada".to_owned(),
            available: Some("1.4".to_owned()),
            installed: Some("1.4".to_owned()),
            may_use: true,
            may_schedule: true,
            loaded: Some(true),
            cron_database: Some("shop".to_owned()),
            zone: Some("GMT".to_owned()),
            seen_s_ago: Some(40),
            entries: vec![entry],
        }
    }

    /// The points that are not good.
    fn faults(facts: &CronFacts) -> Vec<(&'static str, Finding)> {
        let checks = facts.checks();
        assert!(checks.iter().all(|check| (check.finding == Finding::Good) == check.way_out.is_none()), "{checks:?}");
        checks.iter().filter(|check| check.finding != Finding::Good).map(|check| (check.what, check.finding)).collect()
    }

    #[test]
    fn what_is_well_needs_nothing() {
        assert_eq!(faults(&well()), []);
    }

    #[test]
    fn each_fault_is_named_with_its_way_out() {
        let check = |change: fn(&mut CronFacts), what: &'static str, finding: Finding, way_out: &str| {
            let mut facts = well();
            change(&mut facts);
            assert_eq!(faults(&facts), [(what, finding)]);
            let checks = facts.checks();
            let found = checks.iter().find(|check| check.what == what && check.finding == finding).unwrap();
            assert!(found.way_out.as_deref().unwrap().contains(way_out), "{found:?}");
        };
        check(|f| f.available = None, "package", Finding::Wrong, "postgresql-15-cron");
        check(|f| f.loaded = Some(false), "library", Finding::Wrong, "restart the server");
        check(|f| f.loaded = None, "library", Finding::Unknown, "when tick() was called last");
        check(|f| f.may_use = false, "rights", Finding::Wrong, "grant usage on schema cron to ada");
        check(|f| f.may_schedule = false, "rights", Finding::Wrong, "grant execute");
        check(|f| f.zone = Some("Asia/Tokyo".into()), "zone", Finding::Unknown, "leaves out");
        check(|f| f.entries.clear(), "entry", Finding::Wrong, "select cron.schedule('tenure'");
        check(|f| f.entries[0].active = false, "entry", Finding::Wrong, "cron.alter_job(3");
        check(|f| f.entries[0].may_tick = false, "entry", Finding::Wrong, "grant tenure_admin to ada");
        check(|f| f.entries[0].role_exists = false, "entry", Finding::Wrong, "delete from cron.job where jobid = 3");
        check(|f| f.entries[0].database = "x".into(), "entry", Finding::Unknown, "no use");
        check(|f| f.entries[0].status = Some("failed".into()), "last run", Finding::Wrong, "use_background_workers");
        check(|f| f.seen_s_ago = Some(500), "call", Finding::Wrong, "each minute");
        check(|f| f.seen_s_ago = None, "call", Finding::Wrong, "job_run_details");
    }

    #[test]
    fn an_entry_that_was_just_made_was_not_called_yet_and_is_not_wrong_for_that() {
        let mut new = CronFacts { seen_s_ago: None, ..well() };
        new.entries[0].status = None;
        assert_eq!(faults(&new), [("call", Finding::Unknown)]);
        assert!(new.seen().found.contains("not called yet"), "{:?}", new.seen());
        new.entries[0].active = false;
        assert_eq!(faults(&new), [("entry", Finding::Wrong), ("call", Finding::Wrong)]);
    }

    #[test]
    fn an_extension_in_another_database_can_call_from_there() {
        let elsewhere = Some("postgres".to_owned());
        let facts = CronFacts { installed: None, cron_database: elsewhere, entries: Vec::new(), ..well() };
        let checks = facts.checks();
        assert!(checks.iter().all(|check| check.finding != Finding::Wrong), "a documented set-up: {checks:?}");
        assert!(checks[2].way_out.as_deref().unwrap().contains("schedule_in_database"), "{:?}", checks[2]);
        let facts = CronFacts { installed: None, cron_database: None, ..well() };
        assert_eq!(facts.checks()[2].finding, Finding::Wrong);
    }
}
