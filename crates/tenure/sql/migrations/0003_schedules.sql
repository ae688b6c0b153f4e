-- Schedules: what is enqueued again and again, and which runs came of it.
-- Locks: none on existing tables. Time: milliseconds.

create table tenure.schedule (
  id          bigint generated always as identity primary key,
  name        text not null constraint schedule_name_has_1_to_128_bytes check (octet_length(name) between 1 and 128),
  version     bigint not null default 1,   -- grows with every change; whoever fires says which one it has read
  rule        text not null constraint schedule_rule_has_1_to_65536_bytes check (octet_length(rule) between 1 and 65536),
  zone        text not null constraint schedule_zone_has_1_to_64_bytes check (octet_length(zone) between 1 and 64),
  anchor_at   timestamptz not null,        -- from when @every counts
  starts_at   timestamptz,
  ends_at     timestamptz,
  gap         text not null constraint schedule_gap_is_known check (gap in ('next', 'skip')),
  twice       text not null constraint schedule_twice_is_known check (twice in ('first', 'second', 'both')),
  missed      text not null constraint schedule_missed_is_known check (missed in ('skip', 'latest', 'all')),
  missed_max  integer not null constraint schedule_makes_up_for_1_to_1000 check (missed_max between 1 and 1000),
  missed_window_ms bigint not null constraint schedule_makes_up_for_1_s_to_366_days check (missed_window_ms between 1000 and 31622400000),
  overlap     text not null constraint schedule_overlap_is_known check (overlap in ('allow', 'skip', 'queue', 'cancel')),
  jitter_ms   bigint not null constraint schedule_jitter_is_at_most_a_day check (jitter_ms between 0 and 86400000),
  target      text not null default 'kind' constraint schedule_target_is_known check (target in ('kind')),  -- what a time makes: a job of a kind
  kind        text not null constraint schedule_kind_has_1_to_128_bytes check (octet_length(kind) between 1 and 128),
  payload     json not null,               -- a template, see render_payload
  queue       text not null constraint schedule_queue_has_1_to_128_bytes check (octet_length(queue) between 1 and 128),
  priority    smallint not null constraint schedule_priority_is_1_to_4 check (priority between 1 and 4),
  max_attempts smallint not null constraint schedule_max_attempts_is_1_to_1000 check (max_attempts between 1 and 1000),
  timeout_ms  bigint constraint schedule_timeout_is_not_negative check (timeout_ms >= 0),
  created_at  timestamptz not null default clock_timestamp(),
  changed_at  timestamptz not null default clock_timestamp(),  -- the definition, or a resume: from then on it runs
  paused_at   timestamptz,
  paused_by   text,
  pause_reason text,
  removed_at  timestamptz,                 -- it is gone for everybody but those who look for its runs, for as long as those are kept
  next_at     timestamptz,                 -- the first time that nothing was done about; null: nobody has computed it yet, or there is none
  ended       boolean not null default false,  -- there is none, until it is given another rhythm or resumed
  suspect     boolean not null default false,  -- it was among some of which one failed, or was mended: until it has fired it does so alone, after the others
  look_at     timestamptz,                 -- when maintenance has something to do with it; null: never
  last_at     timestamptz,                 -- the logical time of its last run
  last_job_id bigint,                      -- of its times
  hand_jobs   bigint[] not null default '{}',  -- run by hand, those that had not ended when it was looked at last
  queued_at   timestamptz,                 -- the logical time of the run that waits for the end of the last job
  runs        bigint not null default 0,   -- jobs that it has enqueued
  left_out    bigint not null default 0,   -- times that had no job
  ruled_at    timestamptz not null default clock_timestamp(),  -- since when its times are those of this rule
  forgotten_at timestamptz,                -- what is noted of its times begins here; null: nothing is gone
  error       text,                        -- why it cannot fire
  error_at    timestamptz,                 -- since when
  constraint schedule_ends_after_its_start check (ends_at >= starts_at),
  constraint schedule_that_ended_has_no_next_time check (not ended or next_at is null),
  constraint schedule_that_rests_is_not_looked_at check (paused_at is null or removed_at is not null or look_at is null)
) with (fillfactor = 70);
create unique index schedule_name on tenure.schedule (name) where removed_at is null;
create index schedule_look on tenure.schedule (look_at, id) where look_at is not null;
create index schedule_failing on tenure.schedule (error_at, id) where error is not null;
create index schedule_alone on tenure.schedule (look_at, id) where error is not null or suspect;

-- One row per logical time that something was decided for one by one.
create table tenure.schedule_run (
  schedule_id bigint not null,
  logical_at  timestamptz not null,
  state       text not null constraint schedule_run_state_is_known check (state in ('fired', 'by hand', 'backfilled', 'queued', 'overlap', 'replaced')),
  job_id      bigint,
  noted_at    timestamptz not null default clock_timestamp(),
  primary key (schedule_id, logical_at),
  constraint schedule_run_has_a_job_when_it_fired check ((job_id is not null) = (state in ('fired', 'by hand', 'backfilled')))
);

-- Times that were left out together.
create table tenure.schedule_gap (
  schedule_id bigint not null,
  first_at    timestamptz not null,
  last_at     timestamptz not null,
  times       bigint,                      -- null: nobody counted them
  reason      text not null constraint schedule_gap_reason_is_known check (reason in ('missed', 'changed', 'paused')),
  noted_at    timestamptz not null default clock_timestamp(),
  primary key (schedule_id, first_at, reason),
  constraint schedule_gap_ends_after_its_start check (last_at >= first_at)
);

-- Times of the past that are to run. They are computed when it is begun, so that nothing else has to know the rule.
create table tenure.schedule_backfill (
  id          bigint generated always as identity primary key,
  schedule_id bigint not null,
  times       timestamptz[] not null       -- in the order in which they run
    constraint backfill_has_1_to_100000_times check (cardinality(times) between 1 and 100000),
  at_once     integer not null constraint backfill_runs_1_to_1000_at_once check (at_once between 1 and 1000),
  priority    smallint not null constraint backfill_priority_is_1_to_4 check (priority between 1 and 4),
  again       boolean not null,            -- also those that have run
  done        integer not null default 0,  -- so many of the times are dealt with
  enqueued    integer not null default 0,
  skipped     integer not null default 0,  -- they had run before
  dead        integer not null default 0,  -- of its jobs
  open_jobs   bigint[] not null default '{}',  -- those that had not ended when it was looked at last
  created_at  timestamptz not null default clock_timestamp(),
  created_by  text not null,
  cancelled_at timestamptz,
  cancelled_by text,
  ended_at    timestamptz,                 -- every time is dealt with, and every job has ended
  look_at     timestamptz not null,        -- when to go on; of one that has ended, when it goes
  error       text,
  error_at    timestamptz,
  constraint backfill_has_dealt_with_what_it_counts check (done = enqueued + skipped and done <= cardinality(times)),
  constraint backfill_keeps_to_what_it_may_run_at_once check (cardinality(open_jobs) <= at_once)
) with (fillfactor = 70);
create index schedule_backfill_look on tenure.schedule_backfill (look_at, id);
create index schedule_backfill_schedule on tenure.schedule_backfill (schedule_id, id);
