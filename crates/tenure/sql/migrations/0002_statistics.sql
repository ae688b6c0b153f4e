-- Statistics: what happened in each minute, by queue and kind. Why it is so: docs/design/statistics.md.
-- Locks: access exclusive on duty, for a moment. Time: milliseconds, whatever the number of jobs.

-- They return something else than before; functions/ makes them anew. A worker of before names the columns that it reads.
drop function if exists tenure.claim(bigint, uuid, text[], integer[], text[], text[], integer[], bigint[], boolean);
drop function if exists tenure.end_cancelled(bigint[], smallint);

-- A histogram is stored as two arrays side by side: buckets that are not empty, and what they hold. Their bounds: src/model/histogram.rs.

-- What happened since the last fold, a row for each who tells of it and for each queue and kind. Written once; the fold takes it away.
create sequence tenure.stat_delta_id cache 1;  -- the fold needs the order of drawing
create table tenure.stat_delta (
  id           bigint primary key,
  minute       timestamptz not null,
  queue        text not null,
  kind         text not null,
  started      integer not null default 0,   -- handlers
  completed    integer not null default 0,   -- jobs
  failed       integer not null default 0,   -- attempts that failed: their jobs were retried, or are dead
  retried      integer not null default 0,   -- of these: jobs to be tried again
  dead         integer not null default 0,   -- jobs that went to the dead letters, also by a rescue
  cancelled    integer not null default 0,   -- jobs
  snoozed      integer not null default 0,   -- runs that asked for another one later
  released     integer not null default 0,   -- jobs given back without using an attempt
  rescued      integer not null default 0,   -- jobs taken from lost workers, whatever became of them
  overruns     integer not null default 0,   -- handlers that did not stop when they had to
  wait_buckets smallint[] not null default '{}',  -- from the moment from which a job could run to its first start
  wait_counts  integer[] not null default '{}',
  run_buckets  smallint[] not null default '{}',  -- of each attempt
  run_counts   integer[] not null default '{}',
  constraint stat_delta_histograms_fit check (cardinality(wait_buckets) = cardinality(wait_counts) and cardinality(run_buckets) = cardinality(run_counts))
);

create table tenure.stat_minute (
  minute       timestamptz not null,
  queue        text not null,
  kind         text not null,
  enqueued     bigint not null default 0,    -- jobs, in the minute of their created_at
  started      bigint not null default 0,
  completed    bigint not null default 0,
  failed       bigint not null default 0,
  retried      bigint not null default 0,
  dead         bigint not null default 0,
  cancelled    bigint not null default 0,
  snoozed      bigint not null default 0,
  released     bigint not null default 0,
  rescued      bigint not null default 0,
  overruns     bigint not null default 0,
  wait_buckets smallint[] not null default '{}',
  wait_counts  integer[] not null default '{}',
  run_buckets  smallint[] not null default '{}',
  run_counts   integer[] not null default '{}',
  primary key (minute, queue, kind)
) with (fillfactor = 80);

-- The worker itself. Its row of a minute also says which of its reports were taken: none counts twice.
create table tenure.stat_worker (
  minute        timestamptz not null,
  worker_id     bigint not null,
  last_seq      bigint not null,
  claim_buckets smallint[] not null,   -- from the sending of a claim to its answer
  claim_counts  integer[] not null,
  flush_buckets smallint[] not null,   -- the same of a group of ends
  flush_counts  integer[] not null,
  memory_bytes  bigint,                -- the most that the process ever had resident; null: not known
  group_memory_bytes bigint,           -- the most that its control group ever had
  throttled_ms  bigint not null,       -- for which its control group had to wait for CPU
  primary key (minute, worker_id),
  constraint stat_worker_histograms_fit check (cardinality(claim_buckets) = cardinality(claim_counts) and cardinality(flush_buckets) = cardinality(flush_counts))
) with (fillfactor = 50);

-- Of a walk over rows in the order of their ids: the last id that was drawn at a turn, and a transaction id that was drawn after that. Once all
-- transactions before it have ended, nobody can add a row up to the mark.
alter table tenure.duty add column mark bigint, add column mark_xid xid8;

insert into tenure.duty (name, next_at, place)
  select 'enqueued', '-infinity', (case when s.is_called then s.last_value else s.last_value - 1 end) * 128 + 127 from tenure.block_id s;
insert into tenure.duty (name, next_at) values ('deltas', '-infinity'), ('old_stats', '-infinity');
