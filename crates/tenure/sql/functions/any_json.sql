-- any_json: the verbs that take JSON, for who has it as jsonb or as text. json has no implicit cast from either, and nobody but a superuser can make one.
-- With text among them a call is never ambiguous: a literal, null, or a parameter of no known type counts as text, and what has a type finds its own. Where json
-- may be left out, these have no default for it, so that the shorter call has one meaning. Arrays have no such rule: enqueue_many takes json[] alone.
-- The planner puts their text in place of the call (no "security definer", no "set"): they cost a cast. Text arrives character for character; jsonb has put the
-- keys in its order before.
create or replace function tenure.enqueue(p_kind text, p_payload jsonb, p_queue text default 'default', p_priority integer default 2,
                               p_run_at timestamptz default null, p_delay_ms bigint default null,
                               p_max_attempts integer default 5, p_timeout_ms bigint default null) returns bigint
language sql as $$
  select tenure.enqueue(p_kind, p_payload::pg_catalog.json, p_queue, p_priority, p_run_at, p_delay_ms, p_max_attempts, p_timeout_ms)
$$;

create or replace function tenure.requeue(p_job bigint, p_payload jsonb, p_run_at timestamptz default null) returns bigint
language sql as $$ select tenure.requeue(p_job, p_payload::pg_catalog.json, p_run_at) $$;

create or replace function tenure.complete(p_job bigint, p_fence bigint, p_result jsonb) returns void
language sql as $$ select tenure.complete(p_job, p_fence, p_result::pg_catalog.json) $$;

create or replace function tenure.progress(p_job bigint, p_fence bigint, p_progress jsonb) returns boolean
language sql as $$ select tenure.progress(p_job, p_fence, p_progress::pg_catalog.json) $$;

create or replace function tenure.enqueue(p_kind text, p_payload text, p_queue text default 'default', p_priority integer default 2,
                               p_run_at timestamptz default null, p_delay_ms bigint default null,
                               p_max_attempts integer default 5, p_timeout_ms bigint default null) returns bigint
language sql as $$
  select tenure.enqueue(p_kind, p_payload::pg_catalog.json, p_queue, p_priority, p_run_at, p_delay_ms, p_max_attempts, p_timeout_ms)
$$;

create or replace function tenure.requeue(p_job bigint, p_payload text, p_run_at timestamptz default null) returns bigint
language sql as $$ select tenure.requeue(p_job, p_payload::pg_catalog.json, p_run_at) $$;

create or replace function tenure.complete(p_job bigint, p_fence bigint, p_result text) returns void
language sql as $$ select tenure.complete(p_job, p_fence, p_result::pg_catalog.json) $$;

create or replace function tenure.progress(p_job bigint, p_fence bigint, p_progress text) returns boolean
language sql as $$ select tenure.progress(p_job, p_fence, p_progress::pg_catalog.json) $$;
