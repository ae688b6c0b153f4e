-- The tables of tenure. Where a job is, is its state: its id stands in exactly one of
-- ready, later, held, lease, outcome and dead_letter; the row in job never changes.
--
-- A job id is block * 128 + n with n in 0..127. A bundle names its jobs by (block, mask bit(128)):
-- bit n of the mask, counted from the left as get_bit does, is the job block * 128 + n.
-- Locks: none on existing tables. Time: milliseconds.

create sequence tenure.block_id cache 1;  -- blocks, and the ids of rows in ready and later; cache 1: cursors need the order of drawing
create sequence tenure.lease_id cache 1;
create sequence tenure.worker_id cache 1;

create table tenure.setting (
  name  text primary key,
  value text not null
);

create table tenure.queue (
  name         text primary key constraint queue_name_has_1_to_128_bytes check (octet_length(name) between 1 and 128),
  created_at   timestamptz not null default clock_timestamp(),
  paused_at    timestamptz,
  paused_by    text,
  pause_reason text,
  -- How long its finished jobs are kept; null: as the settings of the same names say, or 7, 7 and 90 days.
  keep_completed_ms bigint constraint queue_keeps_completed_1_s_to_100_years check (keep_completed_ms between 1000 and 3155760000000),
  keep_cancelled_ms bigint constraint queue_keeps_cancelled_1_s_to_100_years check (keep_cancelled_ms between 1000 and 3155760000000),
  keep_dead_ms      bigint constraint queue_keeps_dead_1_s_to_100_years check (keep_dead_ms between 1000 and 3155760000000)
);

-- Kinds that are paused, everywhere or in one queue. Nothing but claim reads it while jobs run: a few rows, mostly none.
create table tenure.kind_pause (
  kind         text not null constraint kind_pause_kind_has_1_to_128_bytes check (octet_length(kind) between 1 and 128),
  queue        text constraint kind_pause_queue_has_1_to_128_bytes check (octet_length(queue) between 1 and 128),  -- null: in every queue
  paused_at    timestamptz not null,
  paused_by    text not null,
  pause_reason text,
  constraint kind_pause_key unique nulls not distinct (kind, queue)
);

create table tenure.job (
  id              bigint primary key,
  queue           text not null constraint job_queue_has_1_to_128_bytes check (octet_length(queue) between 1 and 128),
  kind            text not null constraint job_kind_has_1_to_128_bytes check (octet_length(kind) between 1 and 128),
  priority        smallint not null constraint job_priority_is_1_to_4 check (priority between 1 and 4),
  max_attempts    smallint not null constraint job_max_attempts_is_1_to_1000 check (max_attempts between 1 and 1000),
  timeout_ms      bigint constraint job_timeout_is_not_negative check (timeout_ms >= 0),  -- null: the kind's own; 0: none
  created_at      timestamptz not null,
  run_at          timestamptz,       -- null: at once
  idempotency_key text,              -- null: derived from id and created_at
  origin_id       bigint,            -- the first job of a line of requeues
  replaces_id     bigint,            -- the job that this one was made from
  payload         json not null      -- json, not jsonb: the text that was enqueued is the text that the handler gets
) partition by range (id);

create table tenure.ready (
  queue    text not null,
  priority smallint not null constraint ready_lane_is_minus_1_to_4 check (priority between -1 and 4),
  id       bigint not null,
  kind     text not null,
  attempt  smallint not null constraint ready_attempt_is_not_negative check (attempt >= 0),  -- attempts used so far
  flags    smallint not null,
  block    bigint not null,
  mask     bit(128) not null constraint ready_has_jobs check (bit_count(mask) > 0),
  primary key (queue, priority, id)
) with (fillfactor = 80);
-- A fresh bundle has id = block and is found through the primary key; only what came back needs an index of its own.
create index ready_returned on tenure.ready (block) where id <> block;

create table tenure.later (
  block    bigint not null,
  id       bigint not null,
  due_at   timestamptz not null constraint later_due_is_an_instant check (isfinite(due_at)),  -- each claim reckons with the first
  reason   "char" not null constraint later_reason_is_known check (reason in ('s', 'r', 'z')),  -- scheduled, retrying, snoozed
  queue    text not null,
  priority smallint not null constraint later_priority_is_1_to_4 check (priority between 1 and 4),
  kind     text not null,
  attempt  smallint not null constraint later_attempt_is_not_negative check (attempt >= 0),
  flags    smallint not null,
  mask     bit(128) not null constraint later_has_jobs check (bit_count(mask) > 0),
  lease_id bigint,                   -- the lease that put it here, so that a repeated report is told apart
  primary key (block, id)
);
create index later_due on tenure.later (due_at, id);

create table tenure.held (
  block    bigint not null,
  id       bigint not null,
  reason   text not null,
  held_at  timestamptz not null default clock_timestamp(),
  queue    text not null,
  priority smallint not null constraint held_priority_is_1_to_4 check (priority between 1 and 4),
  kind     text not null,
  attempt  smallint not null constraint held_attempt_is_not_negative check (attempt >= 0),
  flags    smallint not null,
  mask     bit(128) not null constraint held_has_jobs check (bit_count(mask) > 0),
  primary key (block, id)
);

create table tenure.worker (
  id           bigint primary key,
  token        uuid not null,
  name         text not null,
  host         text not null,
  pid          integer not null,
  version      text not null,
  queues       text[] not null,
  kinds        text[] not null,
  started_at   timestamptz not null default clock_timestamp(),
  lease_ms     integer not null constraint worker_lease_is_2_s_to_1_h check (lease_ms between 2000 and 3600000),
  grace_ms     integer not null constraint worker_grace_is_within_the_lease check (grace_ms between 100 and lease_ms),
  seen_at      timestamptz not null,
  lease_until  timestamptz not null,
  locked_at    timestamptz,          -- when a connection last took the session lock; null: has none (behind a pooler)
  suspected_at timestamptz,          -- first sighting: the lock is free, or the lease is over
  suspected_by "char" constraint worker_suspicion_is_lock_or_time check (suspected_by in ('l', 't')),
  dead_at      timestamptz,          -- second sighting: its leases are being given away; nothing brings it back
  overrun_jobs bigint[] not null default '{}', -- its jobs that should have ended and have not: told by the worker
  refused_kinds jsonb not null default '{}', -- kinds that it registered for and cannot run, each with the reason: told by the worker
  left_at      timestamptz           -- it has stopped in order, but for overrun_jobs: they go back when its process ends, at no cost of theirs
) with (fillfactor = 50);

-- Workers that finish what they run and get nothing more. Beside the worker's row, which lives by its heartbeats: an operator's open
-- transaction must not hold that. No foreign key, which would lock it too; maintenance removes what is left of workers that are gone.
create table tenure.worker_drain (
  worker_id  bigint primary key,
  drained_at timestamptz not null default clock_timestamp(),
  gone_at    timestamptz           -- when maintenance found no such worker; its process may still come back under another number
);

-- The names of workers that have gone, for those who look at the jobs that they ran. Kept for 90 days; then only the number is known.
create table tenure.former_worker (
  id      bigint primary key,
  name    text not null,
  gone_at timestamptz not null default clock_timestamp()
);
create index former_worker_gone on tenure.former_worker (gone_at);

create table tenure.sleeper (
  queue     text not null,
  minute    bigint not null,         -- in which it went to sleep, or said so again: counts to the end of the next one
  worker_id bigint not null references tenure.worker (id) on delete cascade,
  primary key (queue, minute, worker_id)
);
create index sleeper_worker on tenure.sleeper (worker_id, minute);

create table tenure.lease (
  id        bigint primary key default nextval('tenure.lease_id'),
  worker_id bigint not null,
  queue     text not null,
  kind      text not null,
  attempt   smallint not null constraint lease_attempt_is_positive check (attempt > 0),  -- the attempt that runs
  flags     smallint not null,
  leased_at timestamptz not null,
  blocks    bigint[] not null,       -- the pieces, at most 64
  strip     bit varying not null,    -- the jobs not yet ended: 128 bits a piece, in the order of blocks
  constraint lease_has_jobs check (cardinality(blocks) between 1 and 64 and length(strip) = cardinality(blocks) * 128 and bit_count(strip) > 0)
) with (fillfactor = 70);
create index lease_worker on tenure.lease (worker_id);

create table tenure.outcome (
  job_id      bigint primary key,
  state       "char" not null constraint outcome_state_is_known check (state in ('c', 'x')),  -- completed, cancelled
  attempt     smallint not null,
  worker_id   bigint,
  lease_id    bigint,                -- null: cancelled while it waited
  started_at  timestamptz,
  finished_at timestamptz not null,
  result      json,
  constraint outcome_finished_after_started check (finished_at >= started_at)
) partition by range (job_id);

create table tenure.dead_letter (
  job_id          bigint primary key,
  queue           text not null,
  kind            text not null,
  priority        smallint not null,
  max_attempts    smallint not null,
  timeout_ms      bigint,
  created_at      timestamptz not null,
  run_at          timestamptz,
  idempotency_key text not null,
  origin_id       bigint,
  replaces_id     bigint,
  payload         json not null,
  attempt         smallint not null,
  cause           text not null,
  message         text not null,
  fingerprint     text not null,     -- the same for messages that differ in numbers, ids and quoted texts only
  errors          json not null,     -- the recorded attempts, oldest first
  worker_id       bigint,
  lease_id        bigint,
  started_at      timestamptz,
  died_at         timestamptz not null
);
create index dead_letter_died on tenure.dead_letter (died_at, job_id);
create index dead_letter_queue on tenure.dead_letter (queue, died_at, job_id);  -- retention, by queue
create index dead_letter_fingerprint on tenure.dead_letter (fingerprint, died_at);

create table tenure.attempt_error (
  job_id      bigint not null,
  attempt     smallint not null,
  lease_id    bigint not null,
  cause       text not null,
  message     text not null,
  details     json,
  worker_id   bigint not null,
  worker_name text,
  started_at  timestamptz not null,
  failed_at   timestamptz not null,
  primary key (job_id, attempt, lease_id)
);

-- How often a job asked to be run later: not an attempt, and yet to be seen.
create table tenure.snooze (
  job_id   bigint primary key,
  snoozes  bigint not null constraint snooze_counts_from_one check (snoozes >= 1),
  lease_id bigint not null,          -- the last one that snoozed it, so that a repeated report is told apart
  last_at  timestamptz not null
);

create table tenure.progress (
  job_id   bigint primary key,
  lease_id bigint not null,
  at       timestamptz not null,
  value    json not null
);

create table tenure.cancel_request (
  job_id       bigint primary key,
  worker_id    bigint not null,
  requested_at timestamptz not null default clock_timestamp()
);
create index cancel_request_worker on tenure.cancel_request (worker_id);

-- Where a job's line goes on: a requeued job is a new job, and the old id points to it.
create table tenure.replacement (
  job_id      bigint primary key,
  new_id      bigint not null,
  replaced_at timestamptz not null default clock_timestamp()
);

-- The target of COPY. txid keeps the rows of one transaction together. Unlogged, at half the WAL of a copied job: no row outlives the transaction that
-- wrote it, for what enqueue_inbox() has not taken the commit takes, so that a crash finds nothing here that was promised to anybody.
create unlogged table tenure.inbox (
  txid         xid8 not null default pg_current_xact_id(),
  n            bigint generated always as identity,
  kind         text not null,
  payload      json not null,
  queue        text not null default 'default',
  priority     smallint not null default 2,
  run_at       timestamptz,
  max_attempts smallint not null default 5,
  timeout_ms   bigint,
  primary key (txid, n)
);

-- The transaction that is open and has written to inbox.
create unlogged table tenure.inbox_open (
  txid xid8 primary key
);

-- What they do stands in functions/enqueue_inbox.sql; a trigger has to have its function when it is made.
create function tenure.note_inbox() returns trigger language plpgsql as 'begin return null; end';
create function tenure.commit_inbox() returns trigger language plpgsql as 'begin return null; end';
create trigger inbox_is_noted after insert on tenure.inbox for each statement execute function tenure.note_inbox();
create constraint trigger inbox_open_is_taken after insert on tenure.inbox_open deferrable initially deferred for each row execute function tenure.commit_inbox();

create table tenure.duty (
  name    text not null,             -- a row each, made by migrations alone
  next_at timestamptz not null,
  place   bigint not null default 0,  -- where the last turn stopped before it was done, so that the next one goes on there
  few_workers boolean not null default false,  -- of tick: so few lived at the last turn that each looks whether the next one is done
  -- By name alone, both who reads a row and who writes a new version of it, which has to be unique, would walk through all the versions that
  -- somebody's old snapshot keeps. Read from its end, the newest is met first.
  primary key (name, next_at)
);
insert into tenure.duty (name, next_at) values ('tick', '-infinity'), ('net', '-infinity'), ('overdue', '-infinity'), ('retain', '-infinity'),
  ('horizon', '-infinity'),
  ('cancels', 'infinity'), ('rescue', 'infinity'), ('inbox', 'infinity'), ('sleepers', 'infinity');  -- at every turn or net; only their place counts

-- The attached ranges of job and outcome, in blocks. The last one has no end, so that an enqueue never lacks a partition.
-- From walk_at on: how far retention has come with it.
create table tenure.partition (
  first_block bigint primary key,
  end_block   bigint,
  made_at     timestamptz not null default clock_timestamp(),
  walk_at     timestamptz not null default '-infinity',  -- retention has nothing to do here before
  walk        "char" constraint partition_walk_is_known check (walk in ('l', 't', 'e', 's')),  -- looking, thinning, emptying, sweeping; null: none
  walked_to   bigint,                -- the last job that this walk looked at
  looked      bigint not null default 0,    -- jobs that this walk looked at
  kept        bigint not null default 0,    -- of those: not due yet
  keep_jobs   bigint[] not null default '{}',  -- jobs that outlast the emptying of the range
  due_at      timestamptz,           -- when the first of those kept is due
  low         bigint,                -- no job below has anything to remove, as the last walk saw it; believed until low_until
  low_until   timestamptz,
  exact       boolean not null default false,  -- asked for: do not wait for the whole range to become due
  removed     bigint not null default 0,    -- jobs removed from it so far
  drop_at     timestamptz            -- it was emptied, and may be dropped from then on
);
