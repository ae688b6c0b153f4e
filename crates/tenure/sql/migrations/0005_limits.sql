-- Limits: how many jobs run at a time, how many start in a time, whose turn it is, and in what order. Why it is so: docs/design/limits.md.
-- Locks: access exclusive on job, lease, dead_letter and inbox, for a moment: new columns without a default. Time: milliseconds, whatever the number of jobs.

-- What a job stands under, as enqueue_limited stored it; null: under nothing.
alter table tenure.job add column limits json;
alter table tenure.dead_letter add column limits json;
alter table tenure.inbox add column limits json;
-- The buckets in which the lease's jobs take a place each: all of its pieces in the same ones, or a row for each piece; null: its jobs stand under nothing.
alter table tenure.lease add column buckets bigint[];

-- They return or take more than before; functions/ makes them anew. A worker of before leaves what a claim takes more to its default.
drop function if exists tenure.claim(bigint, uuid, text[], integer[], text[], text[], integer[], bigint[], boolean);
drop function if exists tenure.take_inbox(xid8, integer);

-- The named limits. Bounds without key_ hold for all jobs that name the limit; those with it for each key apart.
create table tenure.limit_rule (
  name            text primary key constraint limit_name_has_1_to_128_bytes check (octet_length(name) between 1 and 128),
  concurrency     integer constraint limit_concurrency_is_0_to_1000000 check (concurrency between 0 and 1000000),
  rate            integer constraint limit_rate_is_1_to_1000000 check (rate between 1 and 1000000),
  period_ms       bigint constraint limit_period_is_1_ms_to_31_days check (period_ms between 1 and 2678400000),
  burst           integer constraint limit_burst_is_1_to_1000000 check (burst between 1 and 1000000),
  key_concurrency integer constraint limit_key_concurrency_is_0_to_1000000 check (key_concurrency between 0 and 1000000),
  key_rate        integer constraint limit_key_rate_is_1_to_1000000 check (key_rate between 1 and 1000000),
  key_period_ms   bigint constraint limit_key_period_is_1_ms_to_31_days check (key_period_ms between 1 and 2678400000),
  key_burst       integer constraint limit_key_burst_is_1_to_1000000 check (key_burst between 1 and 1000000),
  set_at          timestamptz not null default clock_timestamp(),
  constraint limit_rate_is_whole check (num_nulls(rate, period_ms, burst) in (0, 3)),
  constraint limit_key_rate_is_whole check (num_nulls(key_rate, key_period_ms, key_burst) in (0, 3)),
  constraint limit_bounds_something check (num_nonnulls(concurrency, rate, key_concurrency, key_rate) > 0)
);

-- What is counted: a limit as a whole (key ''), a limit's key, or (limit_name '') an order key, in which one job runs at a time.
-- Written by whoever holds the book (functions/claim_limited.sql), and by nobody else.
create sequence tenure.bucket_id;
create table tenure.limit_bucket (
  id            bigint primary key default nextval('tenure.bucket_id'),
  limit_name    text not null,
  key           text not null,
  tokens        double precision,     -- at filled_at; null: full
  filled_at     timestamptz,
  blocked_until timestamptz,          -- a provider said: not before
  pace          double precision not null default 1 constraint limit_pace_is_a_part check (pace > 0 and pace <= 1),  -- of the rate, at paced_at
  paced_at      timestamptz,
  constraint limit_bucket_name unique (limit_name, key)
) with (fillfactor = 70);

-- Jobs of one queue and kind that stand under the same keys wait in one line. A row is kept a while after nothing waits in it any more.
create table tenure.line (
  digest       uuid primary key,      -- a digest of all that makes it this line: who enqueues knows it without a look
  queue        text not null,
  kind         text not null,
  fair_key     text,
  share        double precision not null constraint line_share_is_positive check (share > 0),
  order_bucket bigint,
  order_key    text,                  -- queue and order key
  buckets      bigint[] not null,
  cost_at      smallint[] not null,   -- side by side with buckets: which of a bundle's costs counts there; 0: none
  gate         bigint not null default 0,  -- the bucket for which it waits; 0: it is open; -1: nothing waits in it
  pass         double precision not null   -- its turn: the least is next
) with (fillfactor = 70);
-- Without the primary key among its columns: a plan that was made for an empty table would look that up here, and walk through all of it.
create index line_turn on tenure.line (queue, kind, gate, pass) where gate >= 0;
create index line_idle on tenure.line (digest) where gate = -1;
create index line_fair on tenure.line (fair_key) where fair_key is not null;
create index line_order on tenure.line (order_bucket) where order_bucket is not null;

-- The turn of a line that comes anew.
create table tenure.line_clock (
  queue text primary key,
  pass  double precision not null
) with (fillfactor = 50);

-- Bundles that stand under limits and wait.
create table tenure.limited (
  id      bigint primary key,
  line    uuid not null,
  lane    smallint not null constraint limited_lane_is_minus_1_to_4 check (lane between -1 and 4),
  place   bigint not null,            -- in the line and lane: id; in an ordered line the job
  queue   text not null,
  kind    text not null,
  attempt smallint not null constraint limited_attempt_is_not_negative check (attempt >= 0),
  flags   smallint not null,
  block   bigint not null,
  mask    bit(128) not null constraint limited_has_jobs check (bit_count(mask) > 0),
  fresh   smallint not null,          -- 1: has just come, and may be given out; 2: has just come, and goes to its line first; 0: waits in its line
  under   text[] not null,            -- limits and keys in turns; no key: ''
  costs   integer[],                  -- tokens that each job takes from the limits that it names, in their order; null: one each
  due_at  timestamptz,                -- the head of an ordered line that failed, and blocks it until then
  order_key text                      -- of one that keeps an order and is not in its line yet: queue and order key
) with (fillfactor = 80);
create index limited_line on tenure.limited (line, lane, place, id) where fresh = 0;
-- Without the primary key among its columns, as line_turn; of an order key, who comes before its head.
create index limited_unlined on tenure.limited (queue, line, place) where fresh = 2;
create index limited_ordered on tenure.limited (order_key, lane, place) where order_key is not null;
create index limited_fresh on tenure.limited (queue, fresh, kind, lane, id) where fresh > 0;
create index limited_returned on tenure.limited (block) where id <> block;
create index limited_suspect on tenure.limited (queue, kind) where lane = -1;

-- Queues to which something under limits has come: claims for others look for nothing more. A row for each transaction that found none, so that nobody waits
-- for another; none goes.
create table tenure.limited_queue (
  queue text not null,
  n     bigint not null default nextval('tenure.bucket_id'),
  primary key (queue, n)
);

-- What a claim has to look at, and from when on. Whoever ends a lease or throttles only inserts here: no row that others need is locked.
create sequence tenure.nudge_id cache 1;
create table tenure.nudge (
  id      bigint primary key default nextval('tenure.nudge_id'),
  queue   text not null,              -- '': for all queues
  kind    text not null default '',
  look_at timestamptz not null,
  buckets bigint[],                   -- places came free in these buckets, or their bounds have changed
  throttle json,                      -- a limit is to be slowed down
  bucket  bigint,                     -- lines of this queue and kind wait for this bucket; 0: some are open
  constraint nudge_says_one_thing check (num_nonnulls(buckets, throttle, bucket) = 1)
) with (fillfactor = 70);
create index nudge_due on tenure.nudge (queue, kind, look_at);  -- no id, as in line_turn
create unique index nudge_gate on tenure.nudge (bucket, queue, kind) where bucket is not null;

-- Where the leases of a bucket are found. It counts nothing: a row whose lease has gone says nothing, and goes with the next count.
create table tenure.lease_slot (
  bucket_id bigint not null,
  lease_id  bigint not null,
  primary key (bucket_id, lease_id)
);

-- Queues that take only so many jobs. Read by every enqueue, along its key.
create table tenure.queue_bound (
  queue    text primary key,
  n        bigint not null default nextval('tenure.bucket_id'),  -- names the sequence that counts what was refused: what is rolled back counts there all the same
  jobs     integer constraint bound_jobs_is_1_to_10000000 check (jobs between 1 and 10000000),          -- that have not ended
  key_jobs integer constraint bound_key_jobs_is_1_to_10000000 check (key_jobs between 1 and 10000000),  -- of each fair key
  policy   text not null constraint bound_policy_is_known check (policy in ('reject', 'wait', 'drop')),
  wait_ms  integer constraint bound_wait_is_1_ms_to_10_minutes check (wait_ms between 1 and 600000),
  set_at   timestamptz not null default clock_timestamp(),
  constraint bound_bounds_something check (num_nonnulls(jobs, key_jobs) > 0),
  constraint bound_waits_for_a_time check ((policy = 'wait') = (wait_ms is not null))
);

-- How many more jobs certainly fit: into the queue (key ''), of a key. Ends only make it more; they are counted when there is no room.
create table tenure.queue_room (
  queue   text not null,
  key     text not null,
  room    bigint not null,
  full_at timestamptz,                -- nothing had ended when it was last counted in vain
  dropped bigint not null default 0,
  primary key (queue, key)
) with (fillfactor = 50);

-- The jobs that were taken into bounded queues, by bundles; those that have ended are found out when there is no room.
create table tenure.queue_member (
  queue text not null,
  key   text not null,                -- '': of no key
  block bigint not null,
  mask  bit(128) not null,
  primary key (queue, key, block)
);
create index queue_member_block on tenure.queue_member (queue, block);
