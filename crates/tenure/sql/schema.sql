-- The schema as it stands after all migrations, read from the catalogs. Written by a test; do not edit.

-- sequences
sequence block_id cache 1
sequence bucket_id cache 1
sequence lease_id cache 1
sequence nudge_id cache 1
sequence schedule_backfill_id_seq cache 1
sequence schedule_id_seq cache 1
sequence stat_delta_id cache 1
sequence worker_id cache 1

-- tables
table attempt_error
  job_id bigint not null
  attempt smallint not null
  lease_id bigint not null
  cause text not null
  message text not null
  details json
  worker_id bigint not null
  worker_name text
  started_at timestamp with time zone not null
  failed_at timestamp with time zone not null
  attempt_error_pkey PRIMARY KEY (job_id, attempt, lease_id)
table cancel_request
  job_id bigint not null
  worker_id bigint not null
  requested_at timestamp with time zone not null default clock_timestamp()
  cancel_request_pkey PRIMARY KEY (job_id)
  CREATE INDEX cancel_request_worker ON tenure.cancel_request USING btree (worker_id)
table dead_letter
  job_id bigint not null
  queue text not null
  kind text not null
  priority smallint not null
  max_attempts smallint not null
  timeout_ms bigint
  created_at timestamp with time zone not null
  run_at timestamp with time zone
  idempotency_key text not null
  origin_id bigint
  replaces_id bigint
  payload json not null
  attempt smallint not null
  cause text not null
  message text not null
  fingerprint text not null
  errors json not null
  worker_id bigint
  lease_id bigint
  started_at timestamp with time zone
  died_at timestamp with time zone not null
  limits json
  dead_letter_pkey PRIMARY KEY (job_id)
  CREATE INDEX dead_letter_died ON tenure.dead_letter USING btree (died_at, job_id)
  CREATE INDEX dead_letter_fingerprint ON tenure.dead_letter USING btree (fingerprint, died_at)
  CREATE INDEX dead_letter_queue ON tenure.dead_letter USING btree (queue, died_at, job_id)
table duty
  name text not null
  next_at timestamp with time zone not null
  place bigint not null default 0
  few_workers boolean not null default false
  mark bigint
  mark_xid xid8
  duty_pkey PRIMARY KEY (name, next_at)
table former_worker
  id bigint not null
  name text not null
  gone_at timestamp with time zone not null default clock_timestamp()
  former_worker_pkey PRIMARY KEY (id)
  CREATE INDEX former_worker_gone ON tenure.former_worker USING btree (gone_at)
table held
  block bigint not null
  id bigint not null
  reason text not null
  held_at timestamp with time zone not null default clock_timestamp()
  queue text not null
  priority smallint not null
  kind text not null
  attempt smallint not null
  flags smallint not null
  mask bit(128) not null
  held_attempt_is_not_negative CHECK ((attempt >= 0))
  held_has_jobs CHECK ((bit_count(mask) > 0))
  held_pkey PRIMARY KEY (block, id)
  held_priority_is_1_to_4 CHECK (((priority >= 1) AND (priority <= 4)))
unlogged table inbox
  txid xid8 not null default pg_current_xact_id()
  n bigint not null identity
  kind text not null
  payload json not null
  queue text not null default 'default'::text
  priority smallint not null default 2
  run_at timestamp with time zone
  max_attempts smallint not null default 5
  timeout_ms bigint
  limits json
  inbox_pkey PRIMARY KEY (txid, n)
  CREATE TRIGGER inbox_is_noted AFTER INSERT ON tenure.inbox FOR EACH STATEMENT EXECUTE FUNCTION tenure.note_inbox()
unlogged table inbox_open
  txid xid8 not null
  inbox_open_is_taken TRIGGER DEFERRABLE INITIALLY DEFERRED
  inbox_open_pkey PRIMARY KEY (txid)
  CREATE CONSTRAINT TRIGGER inbox_open_is_taken AFTER INSERT ON tenure.inbox_open DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tenure.commit_inbox()
table job partition by RANGE (id)
  id bigint not null
  queue text not null
  kind text not null
  priority smallint not null
  max_attempts smallint not null
  timeout_ms bigint
  created_at timestamp with time zone not null
  run_at timestamp with time zone
  idempotency_key text
  origin_id bigint
  replaces_id bigint
  payload json not null
  limits json
  job_kind_has_1_to_128_bytes CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 128)))
  job_max_attempts_is_1_to_1000 CHECK (((max_attempts >= 1) AND (max_attempts <= 1000)))
  job_pkey PRIMARY KEY (id)
  job_priority_is_1_to_4 CHECK (((priority >= 1) AND (priority <= 4)))
  job_queue_has_1_to_128_bytes CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 128)))
  job_timeout_is_not_negative CHECK ((timeout_ms >= 0))
table kind_pause
  kind text not null
  queue text
  paused_at timestamp with time zone not null
  paused_by text not null
  pause_reason text
  kind_pause_key UNIQUE NULLS NOT DISTINCT (kind, queue)
  kind_pause_kind_has_1_to_128_bytes CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 128)))
  kind_pause_queue_has_1_to_128_bytes CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 128)))
  CREATE UNIQUE INDEX kind_pause_key ON tenure.kind_pause USING btree (kind, queue) NULLS NOT DISTINCT
table later
  block bigint not null
  id bigint not null
  due_at timestamp with time zone not null
  reason "char" not null
  queue text not null
  priority smallint not null
  kind text not null
  attempt smallint not null
  flags smallint not null
  mask bit(128) not null
  lease_id bigint
  later_attempt_is_not_negative CHECK ((attempt >= 0))
  later_due_is_an_instant CHECK (isfinite(due_at))
  later_has_jobs CHECK ((bit_count(mask) > 0))
  later_pkey PRIMARY KEY (block, id)
  later_priority_is_1_to_4 CHECK (((priority >= 1) AND (priority <= 4)))
  later_reason_is_known CHECK ((reason = ANY (ARRAY['s'::"char", 'r'::"char", 'z'::"char"])))
  CREATE INDEX later_due ON tenure.later USING btree (due_at, id)
table lease with (fillfactor=70)
  id bigint not null default nextval('tenure.lease_id'::regclass)
  worker_id bigint not null
  queue text not null
  kind text not null
  attempt smallint not null
  flags smallint not null
  leased_at timestamp with time zone not null
  blocks bigint[] not null
  strip bit varying not null
  buckets bigint[]
  lease_attempt_is_positive CHECK ((attempt > 0))
  lease_has_jobs CHECK ((((cardinality(blocks) >= 1) AND (cardinality(blocks) <= 64)) AND (length((strip)::"bit") = (cardinality(blocks) * 128)) AND (bit_count((strip)::"bit") > 0)))
  lease_pkey PRIMARY KEY (id)
  CREATE INDEX lease_worker ON tenure.lease USING btree (worker_id)
table lease_slot
  bucket_id bigint not null
  lease_id bigint not null
  lease_slot_pkey PRIMARY KEY (bucket_id, lease_id)
table limit_bucket with (fillfactor=70)
  id bigint not null default nextval('tenure.bucket_id'::regclass)
  limit_name text not null
  key text not null
  tokens double precision
  filled_at timestamp with time zone
  blocked_until timestamp with time zone
  pace double precision not null default 1
  paced_at timestamp with time zone
  limit_bucket_name UNIQUE (limit_name, key)
  limit_bucket_pkey PRIMARY KEY (id)
  limit_pace_is_a_part CHECK (((pace > (0)::double precision) AND (pace <= (1)::double precision)))
  CREATE UNIQUE INDEX limit_bucket_name ON tenure.limit_bucket USING btree (limit_name, key)
table limit_rule
  name text not null
  concurrency integer
  rate integer
  period_ms bigint
  burst integer
  key_concurrency integer
  key_rate integer
  key_period_ms bigint
  key_burst integer
  set_at timestamp with time zone not null default clock_timestamp()
  limit_bounds_something CHECK ((num_nonnulls(concurrency, rate, key_concurrency, key_rate) > 0))
  limit_burst_is_1_to_1000000 CHECK (((burst >= 1) AND (burst <= 1000000)))
  limit_concurrency_is_0_to_1000000 CHECK (((concurrency >= 0) AND (concurrency <= 1000000)))
  limit_key_burst_is_1_to_1000000 CHECK (((key_burst >= 1) AND (key_burst <= 1000000)))
  limit_key_concurrency_is_0_to_1000000 CHECK (((key_concurrency >= 0) AND (key_concurrency <= 1000000)))
  limit_key_period_is_1_ms_to_31_days CHECK (((key_period_ms >= 1) AND (key_period_ms <= '2678400000'::bigint)))
  limit_key_rate_is_1_to_1000000 CHECK (((key_rate >= 1) AND (key_rate <= 1000000)))
  limit_key_rate_is_whole CHECK ((num_nulls(key_rate, key_period_ms, key_burst) = ANY (ARRAY[0, 3])))
  limit_name_has_1_to_128_bytes CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 128)))
  limit_period_is_1_ms_to_31_days CHECK (((period_ms >= 1) AND (period_ms <= '2678400000'::bigint)))
  limit_rate_is_1_to_1000000 CHECK (((rate >= 1) AND (rate <= 1000000)))
  limit_rate_is_whole CHECK ((num_nulls(rate, period_ms, burst) = ANY (ARRAY[0, 3])))
  limit_rule_pkey PRIMARY KEY (name)
table limited with (fillfactor=80)
  id bigint not null
  line uuid not null
  lane smallint not null
  place bigint not null
  queue text not null
  kind text not null
  attempt smallint not null
  flags smallint not null
  block bigint not null
  mask bit(128) not null
  fresh smallint not null
  under text[] not null
  costs integer[]
  due_at timestamp with time zone
  order_key text
  limited_attempt_is_not_negative CHECK ((attempt >= 0))
  limited_has_jobs CHECK ((bit_count(mask) > 0))
  limited_lane_is_minus_1_to_4 CHECK (((lane >= '-1'::integer) AND (lane <= 4)))
  limited_pkey PRIMARY KEY (id)
  CREATE INDEX limited_fresh ON tenure.limited USING btree (queue, fresh, kind, lane, id) WHERE (fresh > 0)
  CREATE INDEX limited_line ON tenure.limited USING btree (line, lane, place, id) WHERE (fresh = 0)
  CREATE INDEX limited_ordered ON tenure.limited USING btree (order_key, lane, place) WHERE (order_key IS NOT NULL)
  CREATE INDEX limited_returned ON tenure.limited USING btree (block) WHERE (id <> block)
  CREATE INDEX limited_suspect ON tenure.limited USING btree (queue, kind) WHERE (lane = '-1'::integer)
  CREATE INDEX limited_unlined ON tenure.limited USING btree (queue, line, place) WHERE (fresh = 2)
table limited_queue
  queue text not null
  n bigint not null default nextval('tenure.bucket_id'::regclass)
  limited_queue_pkey PRIMARY KEY (queue, n)
table line with (fillfactor=70)
  digest uuid not null
  queue text not null
  kind text not null
  fair_key text
  share double precision not null
  order_bucket bigint
  order_key text
  buckets bigint[] not null
  cost_at smallint[] not null
  gate bigint not null default 0
  pass double precision not null
  line_pkey PRIMARY KEY (digest)
  line_share_is_positive CHECK ((share > (0)::double precision))
  CREATE INDEX line_fair ON tenure.line USING btree (fair_key) WHERE (fair_key IS NOT NULL)
  CREATE INDEX line_idle ON tenure.line USING btree (digest) WHERE (gate = '-1'::integer)
  CREATE INDEX line_order ON tenure.line USING btree (order_bucket) WHERE (order_bucket IS NOT NULL)
  CREATE INDEX line_turn ON tenure.line USING btree (queue, kind, gate, pass) WHERE (gate >= 0)
table line_clock with (fillfactor=50)
  queue text not null
  pass double precision not null
  line_clock_pkey PRIMARY KEY (queue)
table migration
  version integer not null
  name text not null
  digest text not null
  applied_at timestamp with time zone not null default clock_timestamp()
  migration_pkey PRIMARY KEY (version)
table nudge with (fillfactor=70)
  id bigint not null default nextval('tenure.nudge_id'::regclass)
  queue text not null
  kind text not null default ''::text
  look_at timestamp with time zone not null
  buckets bigint[]
  throttle json
  bucket bigint
  nudge_pkey PRIMARY KEY (id)
  nudge_says_one_thing CHECK ((num_nonnulls(buckets, throttle, bucket) = 1))
  CREATE INDEX nudge_due ON tenure.nudge USING btree (queue, kind, look_at)
  CREATE UNIQUE INDEX nudge_gate ON tenure.nudge USING btree (bucket, queue, kind) WHERE (bucket IS NOT NULL)
table outcome partition by RANGE (job_id)
  job_id bigint not null
  state "char" not null
  attempt smallint not null
  worker_id bigint
  lease_id bigint
  started_at timestamp with time zone
  finished_at timestamp with time zone not null
  result json
  outcome_finished_after_started CHECK ((finished_at >= started_at))
  outcome_pkey PRIMARY KEY (job_id)
  outcome_state_is_known CHECK ((state = ANY (ARRAY['c'::"char", 'x'::"char"])))
table partition
  first_block bigint not null
  end_block bigint
  made_at timestamp with time zone not null default clock_timestamp()
  walk_at timestamp with time zone not null default '-infinity'::timestamp with time zone
  walk "char"
  walked_to bigint
  looked bigint not null default 0
  kept bigint not null default 0
  keep_jobs bigint[] not null default '{}'::bigint[]
  due_at timestamp with time zone
  low bigint
  low_until timestamp with time zone
  exact boolean not null default false
  removed bigint not null default 0
  drop_at timestamp with time zone
  partition_pkey PRIMARY KEY (first_block)
  partition_walk_is_known CHECK ((walk = ANY (ARRAY['l'::"char", 't'::"char", 'e'::"char", 's'::"char"])))
table progress
  job_id bigint not null
  lease_id bigint not null
  at timestamp with time zone not null
  value json not null
  progress_pkey PRIMARY KEY (job_id)
table queue
  name text not null
  created_at timestamp with time zone not null default clock_timestamp()
  paused_at timestamp with time zone
  paused_by text
  pause_reason text
  keep_completed_ms bigint
  keep_cancelled_ms bigint
  keep_dead_ms bigint
  queue_keeps_cancelled_1_s_to_100_years CHECK (((keep_cancelled_ms >= 1000) AND (keep_cancelled_ms <= '3155760000000'::bigint)))
  queue_keeps_completed_1_s_to_100_years CHECK (((keep_completed_ms >= 1000) AND (keep_completed_ms <= '3155760000000'::bigint)))
  queue_keeps_dead_1_s_to_100_years CHECK (((keep_dead_ms >= 1000) AND (keep_dead_ms <= '3155760000000'::bigint)))
  queue_name_has_1_to_128_bytes CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 128)))
  queue_pkey PRIMARY KEY (name)
table queue_bound
  queue text not null
  n bigint not null default nextval('tenure.bucket_id'::regclass)
  jobs integer
  key_jobs integer
  policy text not null
  wait_ms integer
  set_at timestamp with time zone not null default clock_timestamp()
  bound_bounds_something CHECK ((num_nonnulls(jobs, key_jobs) > 0))
  bound_jobs_is_1_to_10000000 CHECK (((jobs >= 1) AND (jobs <= 10000000)))
  bound_key_jobs_is_1_to_10000000 CHECK (((key_jobs >= 1) AND (key_jobs <= 10000000)))
  bound_policy_is_known CHECK ((policy = ANY (ARRAY['reject'::text, 'wait'::text, 'drop'::text])))
  bound_wait_is_1_ms_to_10_minutes CHECK (((wait_ms >= 1) AND (wait_ms <= 600000)))
  bound_waits_for_a_time CHECK (((policy = 'wait'::text) = (wait_ms IS NOT NULL)))
  queue_bound_pkey PRIMARY KEY (queue)
table queue_member
  queue text not null
  key text not null
  block bigint not null
  mask bit(128) not null
  queue_member_pkey PRIMARY KEY (queue, key, block)
  CREATE INDEX queue_member_block ON tenure.queue_member USING btree (queue, block)
table queue_room with (fillfactor=50)
  queue text not null
  key text not null
  room bigint not null
  full_at timestamp with time zone
  dropped bigint not null default 0
  queue_room_pkey PRIMARY KEY (queue, key)
table ready with (fillfactor=80)
  queue text not null
  priority smallint not null
  id bigint not null
  kind text not null
  attempt smallint not null
  flags smallint not null
  block bigint not null
  mask bit(128) not null
  ready_attempt_is_not_negative CHECK ((attempt >= 0))
  ready_has_jobs CHECK ((bit_count(mask) > 0))
  ready_lane_is_minus_1_to_4 CHECK (((priority >= '-1'::integer) AND (priority <= 4)))
  ready_pkey PRIMARY KEY (queue, priority, id)
  CREATE INDEX ready_returned ON tenure.ready USING btree (block) WHERE (id <> block)
table replacement
  job_id bigint not null
  new_id bigint not null
  replaced_at timestamp with time zone not null default clock_timestamp()
  replacement_pkey PRIMARY KEY (job_id)
table schedule with (fillfactor=70)
  id bigint not null identity
  name text not null
  version bigint not null default 1
  rule text not null
  zone text not null
  anchor_at timestamp with time zone not null
  starts_at timestamp with time zone
  ends_at timestamp with time zone
  gap text not null
  twice text not null
  missed text not null
  missed_max integer not null
  missed_window_ms bigint not null
  overlap text not null
  jitter_ms bigint not null
  target text not null default 'kind'::text
  kind text not null
  payload json not null
  queue text not null
  priority smallint not null
  max_attempts smallint not null
  timeout_ms bigint
  created_at timestamp with time zone not null default clock_timestamp()
  changed_at timestamp with time zone not null default clock_timestamp()
  paused_at timestamp with time zone
  paused_by text
  pause_reason text
  removed_at timestamp with time zone
  next_at timestamp with time zone
  ended boolean not null default false
  suspect boolean not null default false
  look_at timestamp with time zone
  last_at timestamp with time zone
  last_job_id bigint
  hand_jobs bigint[] not null default '{}'::bigint[]
  queued_at timestamp with time zone
  runs bigint not null default 0
  left_out bigint not null default 0
  ruled_at timestamp with time zone not null default clock_timestamp()
  forgotten_at timestamp with time zone
  error text
  error_at timestamp with time zone
  declared_by text
  schedule_ends_after_its_start CHECK ((ends_at >= starts_at))
  schedule_gap_is_known CHECK ((gap = ANY (ARRAY['next'::text, 'skip'::text])))
  schedule_is_declared_by_1_to_128_bytes CHECK (((octet_length(declared_by) >= 1) AND (octet_length(declared_by) <= 128)))
  schedule_jitter_is_at_most_a_day CHECK (((jitter_ms >= 0) AND (jitter_ms <= 86400000)))
  schedule_kind_has_1_to_128_bytes CHECK (((octet_length(kind) >= 1) AND (octet_length(kind) <= 128)))
  schedule_makes_up_for_1_s_to_366_days CHECK (((missed_window_ms >= 1000) AND (missed_window_ms <= '31622400000'::bigint)))
  schedule_makes_up_for_1_to_1000 CHECK (((missed_max >= 1) AND (missed_max <= 1000)))
  schedule_max_attempts_is_1_to_1000 CHECK (((max_attempts >= 1) AND (max_attempts <= 1000)))
  schedule_missed_is_known CHECK ((missed = ANY (ARRAY['skip'::text, 'latest'::text, 'all'::text])))
  schedule_name_has_1_to_128_bytes CHECK (((octet_length(name) >= 1) AND (octet_length(name) <= 128)))
  schedule_overlap_is_known CHECK ((overlap = ANY (ARRAY['allow'::text, 'skip'::text, 'queue'::text, 'cancel'::text])))
  schedule_pkey PRIMARY KEY (id)
  schedule_priority_is_1_to_4 CHECK (((priority >= 1) AND (priority <= 4)))
  schedule_queue_has_1_to_128_bytes CHECK (((octet_length(queue) >= 1) AND (octet_length(queue) <= 128)))
  schedule_rule_has_1_to_65536_bytes CHECK (((octet_length(rule) >= 1) AND (octet_length(rule) <= 65536)))
  schedule_target_is_known CHECK ((target = 'kind'::text))
  schedule_that_ended_has_no_next_time CHECK (((NOT ended) OR (next_at IS NULL)))
  schedule_that_rests_is_not_looked_at CHECK (((paused_at IS NULL) OR (removed_at IS NOT NULL) OR (look_at IS NULL)))
  schedule_timeout_is_not_negative CHECK ((timeout_ms >= 0))
  schedule_twice_is_known CHECK ((twice = ANY (ARRAY['first'::text, 'second'::text, 'both'::text])))
  schedule_zone_has_1_to_64_bytes CHECK (((octet_length(zone) >= 1) AND (octet_length(zone) <= 64)))
  CREATE INDEX schedule_alone ON tenure.schedule USING btree (look_at, id) WHERE ((error IS NOT NULL) OR suspect)
  CREATE INDEX schedule_failing ON tenure.schedule USING btree (error_at, id) WHERE (error IS NOT NULL)
  CREATE INDEX schedule_look ON tenure.schedule USING btree (look_at, id) WHERE (look_at IS NOT NULL)
  CREATE UNIQUE INDEX schedule_name ON tenure.schedule USING btree (name) WHERE (removed_at IS NULL)
table schedule_ahead
  schedule_id bigint not null
  version bigint not null
  times timestamp with time zone[] not null
  complete boolean not null
  computed_at timestamp with time zone not null
  schedule_ahead_has_at_most_512_times CHECK ((cardinality(times) <= 512))
  schedule_ahead_pkey PRIMARY KEY (schedule_id)
table schedule_backfill with (fillfactor=70)
  id bigint not null identity
  schedule_id bigint not null
  times timestamp with time zone[] not null
  at_once integer not null
  priority smallint not null
  again boolean not null
  done integer not null default 0
  enqueued integer not null default 0
  skipped integer not null default 0
  dead integer not null default 0
  open_jobs bigint[] not null default '{}'::bigint[]
  created_at timestamp with time zone not null default clock_timestamp()
  created_by text not null
  cancelled_at timestamp with time zone
  cancelled_by text
  ended_at timestamp with time zone
  look_at timestamp with time zone not null
  error text
  error_at timestamp with time zone
  backfill_has_1_to_100000_times CHECK (((cardinality(times) >= 1) AND (cardinality(times) <= 100000)))
  backfill_has_dealt_with_what_it_counts CHECK (((done = (enqueued + skipped)) AND (done <= cardinality(times))))
  backfill_keeps_to_what_it_may_run_at_once CHECK ((cardinality(open_jobs) <= at_once))
  backfill_priority_is_1_to_4 CHECK (((priority >= 1) AND (priority <= 4)))
  backfill_runs_1_to_1000_at_once CHECK (((at_once >= 1) AND (at_once <= 1000)))
  schedule_backfill_pkey PRIMARY KEY (id)
  CREATE INDEX schedule_backfill_look ON tenure.schedule_backfill USING btree (look_at, id)
  CREATE INDEX schedule_backfill_schedule ON tenure.schedule_backfill USING btree (schedule_id, id)
table schedule_gap
  schedule_id bigint not null
  first_at timestamp with time zone not null
  last_at timestamp with time zone not null
  times bigint
  reason text not null
  noted_at timestamp with time zone not null default clock_timestamp()
  schedule_gap_ends_after_its_start CHECK ((last_at >= first_at))
  schedule_gap_pkey PRIMARY KEY (schedule_id, first_at, reason)
  schedule_gap_reason_is_known CHECK ((reason = ANY (ARRAY['missed'::text, 'changed'::text, 'paused'::text])))
table schedule_run
  schedule_id bigint not null
  logical_at timestamp with time zone not null
  state text not null
  job_id bigint
  noted_at timestamp with time zone not null default clock_timestamp()
  schedule_run_has_a_job_when_it_fired CHECK (((job_id IS NOT NULL) = (state = ANY (ARRAY['fired'::text, 'by hand'::text, 'backfilled'::text]))))
  schedule_run_pkey PRIMARY KEY (schedule_id, logical_at)
  schedule_run_state_is_known CHECK ((state = ANY (ARRAY['fired'::text, 'by hand'::text, 'backfilled'::text, 'queued'::text, 'overlap'::text, 'replaced'::text])))
table setting
  name text not null
  value text not null
  setting_pkey PRIMARY KEY (name)
table sleeper
  queue text not null
  minute bigint not null
  worker_id bigint not null
  sleeper_pkey PRIMARY KEY (queue, minute, worker_id)
  sleeper_worker_id_fkey FOREIGN KEY (worker_id) REFERENCES tenure.worker(id) ON DELETE CASCADE
  CREATE INDEX sleeper_worker ON tenure.sleeper USING btree (worker_id, minute)
table snooze
  job_id bigint not null
  snoozes bigint not null
  lease_id bigint not null
  last_at timestamp with time zone not null
  snooze_counts_from_one CHECK ((snoozes >= 1))
  snooze_pkey PRIMARY KEY (job_id)
table stat_delta
  id bigint not null
  minute timestamp with time zone not null
  queue text not null
  kind text not null
  started integer not null default 0
  completed integer not null default 0
  failed integer not null default 0
  retried integer not null default 0
  dead integer not null default 0
  cancelled integer not null default 0
  snoozed integer not null default 0
  released integer not null default 0
  rescued integer not null default 0
  overruns integer not null default 0
  wait_buckets smallint[] not null default '{}'::smallint[]
  wait_counts integer[] not null default '{}'::integer[]
  run_buckets smallint[] not null default '{}'::smallint[]
  run_counts integer[] not null default '{}'::integer[]
  stat_delta_histograms_fit CHECK (((cardinality(wait_buckets) = cardinality(wait_counts)) AND (cardinality(run_buckets) = cardinality(run_counts))))
  stat_delta_pkey PRIMARY KEY (id)
table stat_minute with (fillfactor=80)
  minute timestamp with time zone not null
  queue text not null
  kind text not null
  enqueued bigint not null default 0
  started bigint not null default 0
  completed bigint not null default 0
  failed bigint not null default 0
  retried bigint not null default 0
  dead bigint not null default 0
  cancelled bigint not null default 0
  snoozed bigint not null default 0
  released bigint not null default 0
  rescued bigint not null default 0
  overruns bigint not null default 0
  wait_buckets smallint[] not null default '{}'::smallint[]
  wait_counts integer[] not null default '{}'::integer[]
  run_buckets smallint[] not null default '{}'::smallint[]
  run_counts integer[] not null default '{}'::integer[]
  stat_minute_pkey PRIMARY KEY (minute, queue, kind)
table stat_worker with (fillfactor=50)
  minute timestamp with time zone not null
  worker_id bigint not null
  last_seq bigint not null
  claim_buckets smallint[] not null
  claim_counts integer[] not null
  flush_buckets smallint[] not null
  flush_counts integer[] not null
  memory_bytes bigint
  group_memory_bytes bigint
  throttled_ms bigint not null
  stat_worker_histograms_fit CHECK (((cardinality(claim_buckets) = cardinality(claim_counts)) AND (cardinality(flush_buckets) = cardinality(flush_counts))))
  stat_worker_pkey PRIMARY KEY (minute, worker_id)
table worker with (fillfactor=50)
  id bigint not null
  token uuid not null
  name text not null
  host text not null
  pid integer not null
  version text not null
  queues text[] not null
  kinds text[] not null
  started_at timestamp with time zone not null default clock_timestamp()
  lease_ms integer not null
  grace_ms integer not null
  seen_at timestamp with time zone not null
  lease_until timestamp with time zone not null
  locked_at timestamp with time zone
  suspected_at timestamp with time zone
  suspected_by "char"
  dead_at timestamp with time zone
  overrun_jobs bigint[] not null default '{}'::bigint[]
  refused_kinds jsonb not null default '{}'::jsonb
  left_at timestamp with time zone
  worker_grace_is_within_the_lease CHECK (((grace_ms >= 100) AND (grace_ms <= lease_ms)))
  worker_lease_is_2_s_to_1_h CHECK (((lease_ms >= 2000) AND (lease_ms <= 3600000)))
  worker_pkey PRIMARY KEY (id)
  worker_suspicion_is_lock_or_time CHECK ((suspected_by = ANY (ARRAY['l'::"char", 't'::"char"])))
table worker_drain
  worker_id bigint not null
  drained_at timestamp with time zone not null default clock_timestamp()
  gone_at timestamp with time zone
  worker_drain_pkey PRIMARY KEY (worker_id)

-- views
view backfills(id bigint, schedule text, schedule_id bigint, state text, first_at timestamp with time zone, last_at timestamp with time zone, newest_first boolean, times integer, done integer, enqueued integer, skipped integer, dead integer, open integer, at_once integer, priority smallint, again boolean, created_at timestamp with time zone, created_by text, cancelled_at timestamp with time zone, cancelled_by text, ended_at timestamp with time zone, error text, error_at timestamp with time zone)
view jobs(id bigint, kind text, queue text, status text, priority smallint, attempt smallint, max_attempts smallint, run_at timestamp with time zone, created_at timestamp with time zone, started_at timestamp with time zone, finished_at timestamp with time zone, updated_at timestamp with time zone, worker text, last_error text, payload json, result json, progress json, timeout_ms bigint, idempotency_key text, origin_id bigint, replaces_id bigint, replaced_by bigint, overrun boolean, snoozes bigint)
view schedule_runs(schedule text, schedule_id bigint, removed boolean, logical_at timestamp with time zone, last_at timestamp with time zone, times bigint, state text, job_id bigint, noted_at timestamp with time zone)
view schedules(id bigint, name text, version bigint, rule text, zone text, anchor_at timestamp with time zone, starts_at timestamp with time zone, ends_at timestamp with time zone, gap text, twice text, missed text, missed_max integer, missed_window_ms bigint, overlap text, jitter_ms bigint, target text, kind text, payload json, queue text, priority smallint, max_attempts smallint, timeout_ms bigint, created_at timestamp with time zone, changed_at timestamp with time zone, paused_at timestamp with time zone, paused_by text, pause_reason text, state text, next_at timestamp with time zone, last_at timestamp with time zone, last_job_id bigint, queued_at timestamp with time zone, runs bigint, left_out bigint, error text, error_at timestamp with time zone, ruled_at timestamp with time zone, forgotten_at timestamp with time zone, declared_by text, ended boolean)
view worker_list(id bigint, name text, host text, pid integer, version text, queues text[], kinds text[], started_at timestamp with time zone, seen_at timestamp with time zone, lease_until timestamp with time zone, lease_ms integer, has_lock boolean, state text, running numeric, overruns integer)

-- functions that a client calls (security definer)
function add_backfill(p_schedule text, p_times timestamp with time zone[], p_at_once integer DEFAULT 10, p_priority integer DEFAULT 4, p_again boolean DEFAULT false, p_by text DEFAULT NULL::text) returns bigint
function add_schedule(p_name text, p_rule text, p_zone text, p_kind text, p_payload json, p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 2, p_max_attempts integer DEFAULT 5, p_timeout_ms bigint DEFAULT NULL::bigint, p_starts_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_ends_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_jitter_ms bigint DEFAULT 0, p_missed text DEFAULT 'latest'::text, p_missed_max integer DEFAULT 100, p_missed_window_ms bigint DEFAULT 86400000, p_overlap text DEFAULT 'allow'::text, p_gap text DEFAULT 'next'::text, p_twice text DEFAULT 'first'::text) returns bigint
function add_schedules(p_schedules json) returns bigint
function attach_worker(p_worker bigint, p_token uuid) returns boolean
function cancel(p_job bigint) returns text
function cancel_backfill(p_backfill bigint, p_by text DEFAULT NULL::text) returns boolean
function cancel_many(p_statuses text[], p_queue text, p_kind text, p_before timestamp with time zone, p_place text DEFAULT NULL::text, p_after text[] DEFAULT NULL::text[], p_limit integer DEFAULT 2000, OUT cancelled bigint, OUT requested bigint, OUT busy bigint, OUT place text, OUT after text[]) returns record
function cancel_settled(p_job bigint) returns text
function claim(p_worker bigint, p_token uuid, p_queues text[], p_wants integer[], p_kinds text[], p_solo_kinds text[], p_lanes integer[], p_after bigint[], p_low boolean, p_most integer DEFAULT 10000) returns TABLE(lease_id bigint, job_id bigint, slot integer, queue text, kind text, attempt smallint, max_attempts smallint, timeout_ms bigint, created_at timestamp with time zone, due_at timestamp with time zone, idempotency_key text, payload json)
function commit_inbox() returns trigger
function complete(p_job bigint, p_fence bigint, p_result json DEFAULT NULL::json) returns void
function complete_many(p_worker bigint, p_token uuid, p_leases bigint[], p_strips bit varying[], p_result_jobs bigint[], p_results json[]) returns TABLE(lease_id bigint, strip bit varying)
function count_jobs(p_statuses text[], p_queue text, p_kind text, p_before timestamp with time zone) returns TABLE(status text, jobs bigint)
function cron_server() returns json
function discard(p_job bigint) returns boolean
function drain_worker(p_worker bigint, p_on boolean DEFAULT true) returns boolean
function due_schedules(p_all boolean DEFAULT false, p_limit integer DEFAULT 200) returns json
function edit_schedule(p_name text, p_version bigint, p_rule text, p_zone text, p_kind text, p_payload json, p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 2, p_max_attempts integer DEFAULT 5, p_timeout_ms bigint DEFAULT NULL::bigint, p_starts_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_ends_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_jitter_ms bigint DEFAULT 0, p_missed text DEFAULT 'latest'::text, p_missed_max integer DEFAULT 100, p_missed_window_ms bigint DEFAULT 86400000, p_overlap text DEFAULT 'allow'::text, p_gap text DEFAULT 'next'::text, p_twice text DEFAULT 'first'::text) returns boolean
function end_of(p_job bigint) returns TABLE(status text, result json, cause text, message text, replaced_by bigint)
function ended_by(p_leases bigint[], p_jobs bigint[]) returns TABLE(lease_id bigint, job_id bigint, status text)
function enqueue(p_kind text, p_payload json, p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 2, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay_ms bigint DEFAULT NULL::bigint, p_max_attempts integer DEFAULT 5, p_timeout_ms bigint DEFAULT NULL::bigint) returns bigint
function enqueue_bundles(p_kind text, p_payloads json[], p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 2, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay_ms bigint DEFAULT NULL::bigint, p_max_attempts integer DEFAULT 5, p_timeout_ms bigint DEFAULT NULL::bigint) returns TABLE(first_job bigint, jobs integer)
function enqueue_inbox() returns SETOF bigint
function enqueue_limited(p_kind text, p_payload json, p_limits json, p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 2, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay_ms bigint DEFAULT NULL::bigint, p_max_attempts integer DEFAULT 5, p_timeout_ms bigint DEFAULT NULL::bigint) returns bigint
function enqueue_many(p_kind text, p_payloads json[], p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 2, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay_ms bigint DEFAULT NULL::bigint, p_max_attempts integer DEFAULT 5, p_timeout_ms bigint DEFAULT NULL::bigint) returns SETOF bigint
function enqueue_many_limited(p_kind text, p_payloads json[], p_limits json, p_queue text DEFAULT 'default'::text, p_priority integer DEFAULT 2, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay_ms bigint DEFAULT NULL::bigint, p_max_attempts integer DEFAULT 5, p_timeout_ms bigint DEFAULT NULL::bigint) returns SETOF bigint
function fail(p_worker bigint, p_token uuid, p_failures json) returns TABLE(job_id bigint, status text)
function fire(p_plans json) returns json
function fold_stats(p_limit integer DEFAULT 20000) returns json
function heartbeat(p_worker bigint, p_token uuid) returns TABLE(lease_left_ms integer, cancel_jobs bigint[])
function keeps() returns TABLE(queue text, completed_ms bigint, cancelled_ms bigint, dead_ms bigint)
function leases() returns TABLE(attempt smallint, leased_at timestamp with time zone, worker_id bigint, blocks bigint[], strip bit varying)
function leases_of(p_worker bigint, p_token uuid) returns TABLE(lease_id bigint, strip bit varying)
function leave_worker(p_worker bigint, p_token uuid) returns boolean
function limits(p_name text DEFAULT NULL::text, p_keys integer DEFAULT 0) returns TABLE(name text, key text, concurrency integer, running bigint, rate integer, period_ms bigint, burst integer, tokens double precision, pace double precision, blocked_until timestamp with time zone, set_at timestamp with time zone)
function line_of(p_job bigint) returns TABLE(job_id bigint, status text, cause text, created_at timestamp with time zone, ended_at timestamp with time zone)
function net(p_duty text) returns void
function note_inbox() returns trigger
function note_overruns(p_worker bigint, p_token uuid, p_jobs bigint[], p_left boolean) returns boolean
function partitions() returns integer
function pause(p_queue text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns boolean
function pause_kind(p_kind text, p_queue text DEFAULT NULL::text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns boolean
function pause_schedule(p_name text, p_by text DEFAULT NULL::text, p_reason text DEFAULT NULL::text) returns boolean
function pick_jobs(p_statuses text[], p_queue text, p_kind text, p_before bigint, p_limit integer, p_requeued boolean DEFAULT false) returns SETOF bigint
function progress(p_job bigint, p_fence bigint, p_progress json) returns boolean
function promote(p_limit integer DEFAULT 1000, p_since interval DEFAULT NULL::interval) returns json
function queue_bounds() returns TABLE(queue text, jobs integer, key_jobs integer, policy text, wait_ms integer, counted bigint, refused bigint, dropped bigint, set_at timestamp with time zone)
function queue_stats() returns TABLE(queue text, available bigint, scheduled bigint, running bigint, held bigint, dead bigint, oldest_due_at timestamp with time zone, paused_at timestamp with time zone, paused_by text, pause_reason text)
function ran_of(p_schedule text, p_times timestamp with time zone[]) returns bigint
function record_stats(p_worker bigint, p_seq bigint, p_minute timestamp with time zone, p_groups json, p_self json DEFAULT '{}'::json) returns boolean
function refuse_kinds(p_worker bigint, p_token uuid, p_kinds text[], p_reasons text[]) returns boolean
function register_worker(p_name text, p_host text, p_pid integer, p_version text, p_queues text[], p_kinds text[], p_lease_ms integer, p_grace_ms integer, p_lock boolean, p_former bigint DEFAULT NULL::bigint) returns TABLE(worker_id bigint, token uuid)
function release(p_worker bigint, p_token uuid, p_leases bigint[], p_strips bit varying[]) returns TABLE(lease_id bigint, strip bit varying)
function remove_limit(p_name text) returns boolean
function remove_queue_bound(p_queue text) returns boolean
function remove_schedule(p_name text) returns boolean
function requeue(p_job bigint, p_payload json DEFAULT NULL::json, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone) returns bigint
function reschedule(p_job bigint, p_run_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_delay_ms bigint DEFAULT NULL::bigint) returns text
function rescue(p_limit integer DEFAULT 1000) returns json
function resume(p_queue text) returns boolean
function resume_kind(p_kind text, p_queue text DEFAULT NULL::text) returns boolean
function resume_schedule(p_name text) returns boolean
function retain(p_limit integer DEFAULT 2000) returns json
function retain_preview(p_after bigint DEFAULT NULL::bigint, p_limit integer DEFAULT 20000) returns json
function run_now(p_job bigint) returns text
function run_schedule(p_name text) returns bigint
function set_keep(p_queue text, p_outcome text, p_ms bigint) returns void
function set_limit(p_name text, p_concurrency integer DEFAULT NULL::integer, p_rate integer DEFAULT NULL::integer, p_period_ms bigint DEFAULT NULL::bigint, p_burst integer DEFAULT NULL::integer, p_key_concurrency integer DEFAULT NULL::integer, p_key_rate integer DEFAULT NULL::integer, p_key_period_ms bigint DEFAULT NULL::bigint, p_key_burst integer DEFAULT NULL::integer) returns boolean
function set_queue_bound(p_queue text, p_jobs integer DEFAULT NULL::integer, p_key_jobs integer DEFAULT NULL::integer, p_policy text DEFAULT 'reject'::text, p_wait_ms integer DEFAULT NULL::integer) returns boolean
function set_setting(p_name text, p_value bigint) returns void
function set_times_ahead(p_lists json) returns bigint
function settings() returns TABLE(name text, value bigint, lowest bigint, highest bigint, default_value bigint, is_set boolean)
function settle_pause(p_wait_ms integer DEFAULT 2000) returns text
function sightings() returns TABLE(worker_id bigint, by "char", has_lock boolean)
function sleep(p_worker bigint, p_token uuid, p_queues text[]) returns void
function stats(p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone, p_queue text DEFAULT NULL::text, p_kind text DEFAULT NULL::text, p_by text[] DEFAULT '{queue,kind}'::text[], p_step interval DEFAULT '00:01:00'::interval) returns TABLE(at timestamp with time zone, queue text, kind text, enqueued bigint, started bigint, completed bigint, failed bigint, retried bigint, dead bigint, cancelled bigint, snoozed bigint, released bigint, rescued bigint, overruns bigint, wait_p50_ms double precision, wait_p95_ms double precision, wait_p99_ms double precision, run_p50_ms double precision, run_p95_ms double precision, run_p99_ms double precision, wait_buckets smallint[], wait_counts bigint[], run_buckets smallint[], run_counts bigint[])
function sync_schedules(p_owner text, p_schedules json, p_adopt boolean DEFAULT false, p_dry_run boolean DEFAULT false, p_basis text DEFAULT NULL::text) returns json
function throttle(p_limit text, p_key text, p_for_ms bigint) returns timestamp with time zone
function throttle_job(p_job bigint, p_limit text, p_for_ms bigint) returns integer
function tick() returns json
function tick(p_worker bigint, p_busy boolean DEFAULT false) returns json
function times_wanted(p_limit integer DEFAULT 100) returns json
function troubled_schedules(p_limit integer DEFAULT 100, p_after_at timestamp with time zone DEFAULT NULL::timestamp with time zone, p_after_id bigint DEFAULT NULL::bigint) returns TABLE(id bigint, name text, state text, since timestamp with time zone, error text)
function uncounted_since() returns timestamp with time zone
function unhandled_kinds() returns TABLE(queue text, kind text, available bigint, oldest_due_at timestamp with time zone, refused text)
function vacuum_horizon() returns json
function waits_for(p_job bigint) returns TABLE(reason text, explained text)
function wake(p_worker bigint, p_token uuid) returns void
function walk_anew(p_exact boolean DEFAULT true) returns void
function worker_stats(p_since timestamp with time zone DEFAULT NULL::timestamp with time zone, p_until timestamp with time zone DEFAULT NULL::timestamp with time zone) returns TABLE(worker_id bigint, name text, last_at timestamp with time zone, claims bigint, claim_p50_ms double precision, claim_p99_ms double precision, flushes bigint, flush_p50_ms double precision, flush_p99_ms double precision, memory_bytes bigint, group_memory_bytes bigint, throttled_ms bigint, claim_buckets smallint[], claim_counts bigint[], flush_buckets smallint[], flush_counts bigint[])

-- functions that those build on
function add_definition(p_definition json) returns void
function add_partition(p_first bigint, p_end bigint) returns void
function admit(p_queues text[], p_keys text[], p_jobs bigint[]) returns text[]
function admit_anyway(p_queue text, p_key text, p_jobs bigint) returns boolean
function adopt_orphans() returns bigint
function ask_lines(p_queue text, p_want integer, p_kinds text[], p_lane_low integer, p_lane_high integer, p_back boolean, p_now timestamp with time zone, OUT lines uuid[], OUT asks integer[], OUT heads bigint[], OUT sizes integer[], OUT lanes smallint[], OUT places bigint[], OUT order_keys text[], OUT buckets text[], OUT cost_at text[], OUT costs text[], OUT shut uuid[], OUT shut_by bigint[], OUT shut_until timestamp with time zone[], OUT empty uuid[]) returns record
function ask_room(p_queues text[], p_keys text[], p_jobs bigint[], OUT bounded text[], OUT bound tenure.queue_bound, OUT key text, OUT most bigint, OUT jobs bigint, OUT why text) returns record
function backoff_ms(p_attempt integer) returns bigint
function begin_walk(r tenure.partition) returns tenure.partition
function bucket_states(p_buckets bigint[], p_now timestamp with time zone) returns TABLE(bucket bigint, places double precision, tokens double precision, per_ms double precision, burst double precision, blocked_until timestamp with time zone, pace double precision, is_order boolean)
function bucket_text(p_limit text, p_key text) returns text
function bucket_use(p_buckets bigint[], p_strip bit varying, p_bucket bigint) returns bigint
function buckets_wanted(p_queue text, p_limits json) returns TABLE(limit_name text, key text, cost_at smallint)
function bury(p_job bigint, p_lease tenure.lease, p_cause text, p_message text, p_now timestamp with time zone) returns void
function bytes_of(p_jobs bigint[]) returns bigint
function can_be_emptied(r tenure.partition) returns boolean
function cancel_held(p_queue text, p_kind text, p_before timestamp with time zone, p_after text[], p_limit integer, p_end_at timestamp with time zone, OUT jobs bigint, OUT busy bigint, OUT after text[]) returns record
function cancel_job(p_job bigint) returns text
function cancel_later(p_statuses text[], p_queue text, p_kind text, p_before timestamp with time zone, p_after text[], p_limit integer, p_end_at timestamp with time zone, OUT jobs bigint, OUT busy bigint, OUT after text[]) returns record
function cancel_leased(p_queue text, p_kind text, p_before timestamp with time zone, p_after text[], p_limit integer, p_end_at timestamp with time zone, OUT jobs bigint, OUT busy bigint, OUT after text[]) returns record
function cancel_limited(p_queue text, p_kind text, p_before timestamp with time zone, p_after text[], p_limit integer, p_end_at timestamp with time zone, OUT jobs bigint, OUT busy bigint, OUT after text[]) returns record
function cancel_ready(p_queue text, p_kind text, p_before timestamp with time zone, p_after text[], p_limit integer, p_end_at timestamp with time zone, OUT jobs bigint, OUT busy bigint, OUT after text[]) returns record
function cancel_rows_max() returns integer
function cancel_waiting(p_job bigint) returns boolean
function cancel_wanted(p_lease tenure.lease, p_jobs bigint[]) returns bigint[]
function changed_fields(p_schedule tenure.schedule, p_definition json) returns json
function charge(p_counts integer[], p_buckets text[], p_cost_at text[], p_costs text[], p_rate_buckets bigint[], p_rate_tokens double precision[], p_now timestamp with time zone) returns void
function check_definition(p_definition json, p_position bigint) returns void
function check_definitions(p_schedules json) returns void
function check_job(p_kind text, p_queue text, p_priority integer, p_run_at timestamp with time zone, p_delay_ms bigint, p_max_attempts integer, p_timeout_ms bigint) returns void
function check_limits(p_limits json) returns json
function check_name(p_what text, p_name text) returns void
function check_name_of(p_what text, p_name jsonb) returns void
function check_payload(p_payload json) returns void
function check_rate(p_of text, p_rate integer, p_period_ms bigint, p_burst integer) returns integer
function check_run_at(p_run_at timestamp with time zone) returns void
function check_schedule(p_rule text, p_zone text, p_starts_at timestamp with time zone, p_ends_at timestamp with time zone, p_jitter_ms bigint, p_missed text, p_missed_max integer, p_missed_window_ms bigint, p_overlap text, p_gap text, p_twice text) returns void
function check_stats(p_groups json, p_self json) returns void
function check_strips(p_verb text, p_leases bigint[], p_strips bit varying[]) returns void
function check_template(p_payload json) returns void
function check_under(p_entry jsonb, p_cost_max integer) returns jsonb
function check_version(p_name text, p_version bigint) returns void
function chosen_jobs(p_block bigint, p_mask bit, p_before timestamp with time zone, OUT jobs bigint[], OUT mask bit) returns record
function claim_fresh(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_back boolean, p_now timestamp with time zone, OUT leases bigint[], OUT jobs integer, OUT look_at timestamp with time zone) returns record
function claim_limited(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_lanes integer[], OUT leases bigint[], OUT jobs integer, OUT busy boolean, OUT look_at timestamp with time zone) returns record
function claim_lines(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_back boolean, p_now timestamp with time zone, OUT leases bigint[], OUT jobs integer, OUT look_at timestamp with time zone) returns record
function complete(p_job bigint, p_fence bigint, p_result jsonb) returns void
function complete(p_job bigint, p_fence bigint, p_result text) returns void
function complete_rest(p_worker bigint, p_token uuid, p_lease bigint, p_strip bit varying, p_result_jobs bigint[], p_results json[]) returns bit varying
function costs_of(p_limits json) returns integer[]
function count_blocks(p_after bigint, p_last bigint, p_blocks integer, OUT jobs bigint, OUT last bigint) returns record
function count_enqueued(p_block bigint, p_xid xid8, p_limit integer, OUT jobs bigint, OUT more boolean) returns record
function count_jobs_one_by_one(p_after bigint, p_last bigint, p_limit integer, OUT jobs bigint, OUT last bigint) returns record
function count_room(p_queue text, p_key text, p_wanted bigint, p_looks integer) returns bigint
function cron_jobs() returns TABLE(id bigint, name text, schedule text, command text, database text, role text, active boolean, zone text)
function cron_state() returns json
function cut_text(p_text text) returns text
function declare_dead() returns integer
function definition(p_definition json) returns jsonb
function divide_schedules(p_plans json, OUT parts json[], OUT alone json[]) returns record
function draw_marks(OUT block bigint, OUT delta bigint, OUT xid xid8) returns record
function drop_oldest(p_queue text, p_key text, p_jobs bigint) returns void
function drop_range(p_first bigint) returns bigint
function drop_ranges() returns integer
function drop_unused(p_ranges bigint[], p_drawn bigint) returns bigint
function due_in_ms(p_since timestamp with time zone, p_ahead interval) returns bigint
function edit_definition(p_definition json) returns void
function empty_range(r tenure.partition) returns tenure.partition
function end_cancelled(p_jobs bigint[], p_attempt smallint) returns void
function end_thinning(r tenure.partition, p_next_at timestamp with time zone) returns tenure.partition
function ends_in(p_after bigint, p_before bigint, p_limit integer) returns TABLE(job_id bigint, state "char", created_at timestamp with time zone, due_at timestamp with time zone)
function enqueue(p_kind text, p_payload jsonb, p_queue text, p_priority integer, p_run_at timestamp with time zone, p_delay_ms bigint, p_max_attempts integer, p_timeout_ms bigint) returns bigint
function enqueue(p_kind text, p_payload text, p_queue text, p_priority integer, p_run_at timestamp with time zone, p_delay_ms bigint, p_max_attempts integer, p_timeout_ms bigint) returns bigint
function enqueue_backfill(p_schedule tenure.schedule, p_times timestamp with time zone[], p_priority smallint) returns bigint[]
function enqueue_run(p_schedule tenure.schedule, p_at timestamp with time zone) returns bigint
function errors_of(p_job bigint) returns json
function fail_one(p_worker bigint, p_lease bigint, p_job bigint, p_entry json) returns text
function fingerprint(p_cause text, p_message text) returns text
function fire_ahead(p_now timestamp with time zone, p_before timestamp with time zone, p_until timestamp with time zone, p_workers boolean, p_from timestamp with time zone) returns json
function fire_alone(p_plan json, OUT jobs bigint, OUT failed bigint, OUT done bigint) returns record
function fire_divided(p_plans json, OUT jobs bigint, OUT failed bigint, OUT done bigint) returns record
function fire_in_ms(p_all boolean) returns bigint
function fire_one(p_plan json) returns bigint
function fire_then_ms() returns bigint
function fire_together(p_plans json, OUT jobs bigint, OUT done bigint, OUT special json[], OUT alone json[]) returns record
function first_rows(p_queues text[], p_wants integer[], p_lanes integer[], p_after bigint[], p_from integer, p_to integer) returns bigint[]
function fit(p_asks integer[], p_buckets text[], p_cost_at text[], p_costs text[], p_now timestamp with time zone, p_fresh boolean, OUT fits double precision[], OUT closed_by bigint[], OUT closed_until timestamp with time zone[], OUT rate_buckets bigint[], OUT rate_tokens double precision[]) returns record
function fold_deltas(p_delta bigint, p_xid xid8, OUT rows bigint, OUT more boolean) returns record
function fold_nudges(p_queue text, p_kinds text[], p_now timestamp with time zone) returns boolean
function fold_range(p_after bigint, p_last bigint) returns void
function fold_throttle(p_throttle json, p_now timestamp with time zone) returns void
function follow_cancel(p_job bigint, p_worker bigint) returns boolean
function follow_cancels(p_limit integer) returns bigint
function forget(p_jobs bigint[]) returns void
function forget_ahead() returns void
function forget_notes(p_schedule bigint, p_before timestamp with time zone, p_limit integer) returns bigint
function forget_removed(p_now timestamp with time zone) returns void
function forget_runs(p_schedule bigint, p_now timestamp with time zone) returns void
function forget_sleepers() returns bigint
function forget_slots() returns boolean
function forget_stats() returns bigint
function found_full(p_n bigint, p_key text) returns boolean
function free_places(p_buckets bigint[], p_queue text) returns void
function fresh_round(p_worker bigint, p_queue text, p_want integer, p_asks integer, p_rows integer, p_kinds text[], p_solo_kinds text[], p_back boolean, p_now timestamp with time zone, OUT leases bigint[], OUT jobs integer, OUT moved integer) returns record
function from_us(p_us bigint) returns timestamp with time zone
function give_up_queued(p_schedule bigint, p_queued_at timestamp with time zone, p_state text) returns void
function has_ended(p_job bigint) returns boolean
function has_run(p_schedule bigint, p_at timestamp with time zone) returns boolean
function idempotency_key_of(p_job tenure.job) returns text
function instant_text(p_at timestamp with time zone) returns text
function is_alive(p_worker bigint, p_token uuid) returns boolean
function is_histogram(p_buckets smallint[], p_counts integer[]) returns boolean
function is_passing(p_state text) returns boolean
function is_renderable(p_schedule tenure.schedule, p_at timestamp with time zone) returns boolean
function jobs_before(r tenure.partition) returns bigint
function jobs_beside(p_line uuid, p_bucket bigint, p_n bigint) returns bigint
function jobs_ended(p_schedule tenure.schedule) returns boolean
function jobs_in(p_blocks bigint[], p_strip bit varying) returns TABLE(job_id bigint, slot integer)
function join_bits(bit varying) returns bit varying
function keep_default(p_outcome text) returns bigint
function keep_longest() returns interval
function keep_shortest() returns interval
function kinds_open(p_kinds text[], p_queue text, p_paused text[], p_in text[]) returns text[]
function lane_of(p_priority smallint, p_flags smallint) returns smallint
function lease_of(p_job bigint) returns tenure.lease
function leave_held(p_row tenure.held, p_gone bit) returns void
function leave_later(p_row tenure.later, p_gone bit) returns void
function leave_lease(p_lease bigint, p_held bit varying, p_gone bit varying) returns void
function leave_limited(p_row tenure.limited, p_gone bit) returns void
function leave_out(p_schedule bigint, p_next_at timestamp with time zone, p_now timestamp with time zone, p_reason text) returns void
function leave_ready(p_row tenure.ready, p_gone bit) returns void
function leave_spare(p_width_max bigint) returns void
function limit_changed(p_name text) returns void
function limit_idle(p_ms bigint) returns void
function limited_reason(p_job bigint) returns TABLE(reason text, explained text)
function limited_row_of(p_job bigint) returns tenure.limited
function limits_look_at(p_queue text, p_kinds text[], p_now timestamp with time zone) returns timestamp with time zone
function line_id(p_queue text, p_kind text, p_limits json) returns uuid
function line_up(p_queue text, p_now timestamp with time zone) returns boolean
function lines_round(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_lane_low integer, p_lane_high integer, p_back boolean, p_now timestamp with time zone, OUT leases bigint[], OUT jobs integer, OUT shut boolean, OUT lost boolean, OUT look_at timestamp with time zone) returns record
function live_in(p_first bigint, p_end bigint, p_limit integer) returns bigint[]
function local_at(p_at timestamp with time zone, p_zone text) returns timestamp without time zone
function lock_bound(p_queue text) returns tenure.queue_bound
function lock_bound_alone(p_queue text) returns boolean
function lock_class() returns integer
function lock_is_free(w tenure.worker) returns boolean
function lock_key(p_worker bigint) returns integer
function lock_range(p_job text, p_outcome text) returns boolean
function lock_room(p_queue text, p_key text, p_most bigint, p_until timestamp with time zone) returns tenure.queue_room
function lock_schedules(p_plans json, OUT ids bigint[], OUT places tid[]) returns record
function lock_waiting(p_job bigint) returns boolean
function locks_count_since() returns timestamp with time zone
function locks_held() returns TABLE(key integer)
function look(r tenure.partition, p_limit integer, p_end_at timestamp with time zone) returns tenure.partition
function make_idle_lines(p_rows bigint[], p_now timestamp with time zone) returns void
function make_lines(p_rows bigint[], p_now timestamp with time zone) returns void
function mask_first(p_mask bit, p_count integer) returns bit
function mask_fresh(p_count integer) returns bit
function mask_of(p_job bigint) returns bit
function members(p_queue text, p_key text) returns bigint
function merge_histograms(p_buckets smallint[], p_counts integer[], p_more_buckets smallint[], p_more_counts integer[], OUT buckets smallint[], OUT counts integer[]) returns record
function minute() returns bigint
function minute_of(p_at timestamp with time zone) returns timestamp with time zone
function move_backfill(p_backfill tenure.schedule_backfill) returns void
function move_backfills(p_since timestamp with time zone) returns bigint
function move_cron_jobs(p_schedules json, p_jobs bigint[]) returns bigint
function move_turns(p_queue text, p_lines uuid[], p_jobs integer[]) returns void
function move_waiting(p_job tenure.job, p_due_at timestamp with time zone, p_now timestamp with time zone) returns text
function net_duties() returns text[]
function next_look(r tenure.partition) returns timestamp with time zone
function next_run(p_entry json, p_attempt smallint, p_now timestamp with time zone) returns timestamp with time zone
function not_ended(p_jobs bigint[]) returns bigint[]
function not_whole(r tenure.partition, p_until timestamp with time zone) returns tenure.partition
function note_cancelled(p_jobs bigint[]) returns void
function note_ends(p_queue text, p_kind text, p_cancelled bigint, p_rescued bigint, p_dead bigint) returns void
function note_failure(p_schedule bigint, p_version bigint, p_message text, p_state text) returns void
function note_found_full(p_n bigint, p_key text, p_took interval) returns void
function note_full(p_queue text) returns void
function note_limited(p_queue text) returns void
function note_members(p_queue text, p_key text, p_blocks bigint[], p_counts integer[]) returns void
function note_open(p_queue text, p_kinds text[]) returns void
function note_queue(p_queue text) returns void
function open_gates(p_queue text, p_kinds text[], p_now timestamp with time zone, p_open boolean) returns boolean
function order_key(p_queue text, p_limits json) returns text
function outline(p_message text) returns text
function pace_at(p_pace double precision, p_since timestamp with time zone, p_at timestamp with time zone) returns double precision
function paced_ms(p_pace double precision, p_since timestamp with time zone, p_from timestamp with time zone, p_to timestamp with time zone) returns double precision
function partition_name(p_table text, p_first bigint, p_end bigint) returns text
function pause_readers() returns TABLE(virtualtransaction text, pid integer)
function pause_text(p_what text, p_at timestamp with time zone, p_by text, p_reason text) returns text
function percentile_ms(p_buckets smallint[], p_counts bigint[], p_part double precision) returns double precision
function pick_in_state(p_status text, p_queue text, p_kind text, p_before bigint, p_limit integer, p_requeued boolean) returns SETOF bigint
function pieces_of(p_blocks bigint[], p_strip bit varying) returns TABLE(slot integer, first_job bigint, last_job bigint)
function place_fresh(p_queue text, p_priority smallint, p_kind text, p_limits json, p_due_at timestamp with time zone, p_blocks bigint[], p_counts integer[]) returns void
function place_limited(p_jobs bigint[], p_queue text, p_lane smallint, p_kind text, p_attempt integer, p_flags integer, p_limits json, p_due_at timestamp with time zone) returns void
function plan_ahead(p_schedule tenure.schedule, p_times timestamp with time zone[], p_complete boolean, p_now timestamp with time zone, p_late timestamp with time zone) returns json
function progress(p_job bigint, p_fence bigint, p_progress jsonb) returns boolean
function progress(p_job bigint, p_fence bigint, p_progress text) returns boolean
function put_in_lines(p_ids bigint[], p_now timestamp with time zone) returns integer
function put_limited(p_jobs bigint[], p_queue text, p_lane smallint, p_kind text, p_attempt integer, p_flags integer, p_due_at timestamp with time zone) returns void
function put_off(r tenure.partition, p_at timestamp with time zone) returns tenure.partition
function put_ready(p_jobs bigint[], p_queue text, p_lane smallint, p_kind text, p_attempt integer, p_flags integer) returns void
function readable_setting(p_name text) returns text
function record_error(p_lease tenure.lease, p_job bigint, p_cause text, p_message text, p_details json, p_now timestamp with time zone) returns void
function refuse(p_state text, p_message text, p_hint text) returns void
function refuse_busy(p_queue text) returns void
function refuse_full(p_queue text) returns void
function refuse_room(p_bound tenure.queue_bound, p_key text, p_most bigint, p_jobs bigint, p_why text) returns void
function refused_text(p_queue text, p_kind text) returns text
function render_payload(p_schedule tenure.schedule, p_at timestamp with time zone) returns json
function request_cancels(p_jobs bigint[], p_worker bigint, p_end_at timestamp with time zone) returns bigint[]
function requeue(p_job bigint, p_payload jsonb, p_run_at timestamp with time zone) returns bigint
function requeue(p_job bigint, p_payload text, p_run_at timestamp with time zone) returns bigint
function rescue_lease(p_lease bigint) returns bigint
function retain_dead(p_limit integer) returns bigint
function retain_range(p_limit integer) returns TABLE(removed bigint, emptied integer)
function room_at_once(p_queue text, p_jobs bigint, p_drop boolean) returns bigint
function runs_kept() returns interval
function schedule_named(p_name text) returns tenure.schedule
function second_sighting_at(w tenure.worker) returns timestamp with time zone
function set_turn(p_duty text, p_next_at timestamp with time zone) returns boolean
function settled_mark(p_drawn bigint, p_xid xid8, p_mark bigint, p_mark_xid xid8) returns bigint
function shut_lines(p_queue text, p_lines uuid[], p_buckets bigint[], p_until timestamp with time zone[], p_now timestamp with time zone) returns void
function sight_workers() returns void
function slot_of(p_blocks bigint[], p_strip bit varying, p_job bigint) returns integer
function some_fresh(p_queue text, p_kinds text[]) returns boolean
function state_of_run(p_schedule tenure.schedule) returns text
function stats_kept(p_setting text) returns interval
function stats_of_groups(p_groups json) returns TABLE(queue text, kind text, started integer, completed integer, failed integer, retried integer, dead integer, cancelled integer, snoozed integer, released integer, overruns integer, wait_buckets smallint[], wait_counts integer[], run_buckets smallint[], run_counts integer[])
function stats_of_worker(p_self json) returns TABLE(claim_buckets smallint[], claim_counts integer[], flush_buckets smallint[], flush_counts integer[], memory_bytes bigint, group_memory_bytes bigint, throttled_ms bigint)
function storable(p_json json) returns json
function suspect_schedules(p_plans json) returns bigint
function sweep(r tenure.partition, p_end_at timestamp with time zone) returns tenure.partition
function take_cancel_requests(p_jobs bigint[]) returns bigint[]
function take_ends(p_jobs bigint[]) returns bigint[]
function take_inbox(p_txid xid8, p_limit integer) returns bigint[]
function take_left_behind() returns bigint
function take_limited(p_worker bigint, p_queue text, p_ids bigint[], p_takes integer[], p_buckets text[], p_solo_kinds text[], p_now timestamp with time zone, OUT leases bigint[], OUT jobs integer, OUT counts integer[]) returns record
function take_room(p_bound tenure.queue_bound, p_key text, p_most bigint, p_jobs bigint) returns text
function take_turn(p_duty text, p_now timestamp with time zone, p_every interval) returns boolean
function take_waiting(p_job bigint) returns smallint
function takers() returns TABLE(worker_id bigint)
function tell(p_worker bigint, p_word text) returns void
function thin(r tenure.partition, p_limit integer, p_end_at timestamp with time zone) returns tenure.partition
function to_us(p_at timestamp with time zone) returns bigint
function turn_at(p_duty text) returns timestamp with time zone
function undecided_since(p_schedule tenure.schedule) returns timestamp with time zone
function under_buckets(p_under text[]) returns TABLE(limit_name text, key text, cost_at smallint)
function under_of(p_limits json) returns text[]
function users_of(p_job text, p_outcome text) returns text[]
function wait_for_tokens(p_now timestamp with time zone, p_missing double precision, p_per_ms double precision, p_pace double precision) returns timestamp with time zone
function wake_near(p_queue text, p_due_at timestamp with time zone, p_now timestamp with time zone) returns void
function wake_next(p_queue text, p_worker bigint) returns void
function wake_one(p_queue text) returns void
function worth_while(p_per_ms double precision, p_burst double precision) returns double precision
