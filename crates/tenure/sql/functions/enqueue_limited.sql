-- enqueue_limited: one job that stands under limits, takes turns with others, or keeps an order; in the caller's transaction.
-- Transition: none -> limited (held), or none -> later (scheduled) when due in the future.
-- Parameters: as enqueue, and p_limits: {"under": [{"limit": name, "key": text, "cost": tokens}], "fair": key, "share": weight, "order": key, "failing": "block" | "aside"},
-- each of them optional; docs/guide/limit.md. Returns the id. Errors: TN002, also for a limit that is not set; TN007 and TN005 in a queue that is bounded (admit.sql).
-- Locks: none that another enqueue or a claim waits for, as it only inserts, but those of admit in a queue that is bounded.
create or replace function tenure.enqueue_limited(p_kind text, p_payload json, p_limits json, p_queue text default 'default', p_priority integer default 2,
                               p_run_at timestamptz default null, p_delay_ms bigint default null,
                               p_max_attempts integer default 5, p_timeout_ms bigint default null) returns bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
begin
  return (select e.id from tenure.enqueue_many_limited(p_kind, array[p_payload], p_limits, p_queue, p_priority, p_run_at, p_delay_ms, p_max_attempts, p_timeout_ms) as e(id));
end $$;

-- enqueue_many_limited: jobs of one kind under the same limits; they share bundles, but for those that keep an order. Returns the ids in the order of the payloads.
create or replace function tenure.enqueue_many_limited(p_kind text, p_payloads json[], p_limits json, p_queue text default 'default', p_priority integer default 2,
                                    p_run_at timestamptz default null, p_delay_ms bigint default null,
                                    p_max_attempts integer default 5, p_timeout_ms bigint default null) returns setof bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  c_bundle_jobs constant integer := 100;
  v_now timestamptz := clock_timestamp();
  v_due_at timestamptz;
  v_limits json;
  v_jobs integer := coalesce(cardinality(p_payloads), 0);
  v_bounded boolean;
  v_blocks bigint[];
  v_counts integer[];
begin
  perform tenure.check_job(p_kind, p_queue, p_priority, p_run_at, p_delay_ms, p_max_attempts, p_timeout_ms);
  v_limits := tenure.check_limits(p_limits);
  v_due_at := coalesce(p_run_at, v_now + p_delay_ms * interval '1 millisecond');
  if v_jobs = 0 then
    return;
  end if;
  perform tenure.check_payload(u.payload) from (select unnest(p_payloads) as payload) u
    where u.payload is null or octet_length(u.payload::text) > 65536 or position(E'\\u' in u.payload::text) > 0;
  select b.queue is not null into v_bounded from pg_current_xact_id() as x(id) left join tenure.queue_bound b on b.queue = p_queue;
  if v_bounded then
    v_bounded := tenure.admit(array[p_queue], array[v_limits ->> 'fair'], array[v_jobs]) <> '{}';
  end if;
  v_blocks := array(select nextval('tenure.block_id') from generate_series(1, (v_jobs + c_bundle_jobs - 1) / c_bundle_jobs));
  v_counts := array(select least(c_bundle_jobs, v_jobs - (b.o - 1) * c_bundle_jobs) from generate_series(1, cardinality(v_blocks)) as b(o));
  if v_bounded then
    perform tenure.note_members(p_queue, v_limits ->> 'fair', v_blocks, v_counts);
  end if;
  insert into tenure.job (id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, payload, limits)
    select v_blocks[u.n / c_bundle_jobs + 1] * 128 + u.n % c_bundle_jobs, p_queue, p_kind, p_priority,
           p_max_attempts, p_timeout_ms, v_now, v_due_at, u.payload, v_limits
    from (select generate_series(0, v_jobs - 1) as n, unnest(p_payloads) as payload) u;
  perform tenure.place_fresh(p_queue, p_priority::smallint, p_kind, v_limits, case when v_due_at > v_now then v_due_at end, v_blocks, v_counts);
  return query select v_blocks[(o - 1) / c_bundle_jobs + 1] * 128 + (o - 1) % c_bundle_jobs from generate_series(1, v_jobs) as o;
end $$;

-- place_fresh: new bundles of jobs that stand under the same limits go to where they wait; p_due_at null: at once. Whoever claims gives them out, or makes their line.
create or replace function tenure.place_fresh(p_queue text, p_priority smallint, p_kind text, p_limits json, p_due_at timestamptz, p_blocks bigint[], p_counts integer[]) returns void
language plpgsql as $$
declare
  c_limited constant smallint := 4;
begin
  if p_due_at is not null then
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
      select b.block, b.block, p_due_at, 's', p_queue, p_priority, p_kind, 0, c_limited, tenure.mask_fresh(b.jobs)
      from unnest(p_blocks, p_counts) as b(block, jobs);
    perform tenure.wake_near(p_queue, p_due_at, clock_timestamp());
  elsif p_limits ->> 'order' is not null then
    perform tenure.place_limited(array(select b.block * 128 + n from unnest(p_blocks, p_counts) as b(block, jobs) cross join generate_series(0, b.jobs - 1) as n),
                                 p_queue, p_priority, p_kind, 0, c_limited, p_limits);
  else
    insert into tenure.limited (id, line, lane, place, queue, kind, attempt, flags, block, mask, fresh, under, costs)
      select b.block, l.id, p_priority, b.block, p_queue, p_kind, 0, c_limited, b.block, tenure.mask_fresh(b.jobs), l.fresh, l.under, l.costs
      from unnest(p_blocks, p_counts) as b(block, jobs)
      cross join (select tenure.line_id(p_queue, p_kind, p_limits) as id, tenure.under_of(p_limits) as under, tenure.costs_of(p_limits) as costs,
                         case when p_limits ->> 'fair' is null then 1 else 2 end as fresh) l;
    perform tenure.note_limited(p_queue);
    perform tenure.wake_one(p_queue);
  end if;
end $$;

-- place_limited: jobs that stand under the same limits wait, under new ids. With an order key each has a row of its own, and its place is
-- that of its enqueue, whatever has happened to it since; the lane counts for suspects only. What was released or rescued goes to the head of its line, before
-- anything that has come since. p_due_at: they block their line until then.
create or replace function tenure.place_limited(p_jobs bigint[], p_queue text, p_lane smallint, p_kind text, p_attempt integer, p_flags integer, p_limits json,
                                     p_due_at timestamptz default null) returns void
language plpgsql as $$
declare
  v_line constant uuid := tenure.line_id(p_queue, p_kind, p_limits);
  v_under constant text[] := tenure.under_of(p_limits);
  v_costs constant integer[] := tenure.costs_of(p_limits);
begin
  if p_limits ->> 'order' is not null then
    insert into tenure.limited (id, line, lane, place, queue, kind, attempt, flags, block, mask, fresh, under, costs, due_at, order_key)
      select nextval('tenure.block_id'), v_line, least(p_lane, 0), u.job, p_queue, p_kind, p_attempt, p_flags, u.job >> 7, tenure.mask_of(u.job), 2, v_under, v_costs, p_due_at, tenure.order_key(p_queue, p_limits)
      from unnest(p_jobs) as u(job);
  else
    insert into tenure.limited (id, line, lane, place, queue, kind, attempt, flags, block, mask, fresh, under, costs)
      select b.id, v_line, p_lane, b.id, p_queue, p_kind, p_attempt, p_flags, b.block, b.mask, case when p_limits ->> 'fair' is null and p_lane > 0 then 1 else 2 end, v_under, v_costs
      from (select nextval('tenure.block_id') as id, g.block, g.mask
            from (select u.job >> 7 as block, bit_or(tenure.mask_of(u.job)) as mask from unnest(p_jobs) as u(job) group by u.job >> 7 order by 1) g) b;
  end if;
  perform tenure.note_limited(p_queue);
  perform tenure.wake_one(p_queue);
end $$;

-- put_limited: jobs that come back. What they stand under is in their own rows.
create or replace function tenure.put_limited(p_jobs bigint[], p_queue text, p_lane smallint, p_kind text, p_attempt integer, p_flags integer, p_due_at timestamptz default null) returns void
language plpgsql as $$
declare
  v_group record;
begin
  perform pg_current_xact_id();
  for v_group in
    select array_agg(j.id order by j.id) as jobs, j.limits::text as limits
    from unnest(p_jobs) as u(job) join tenure.job j on j.id = u.job group by j.limits::text order by min(j.id)
  loop
    perform tenure.place_limited(v_group.jobs, p_queue, p_lane, p_kind, p_attempt, p_flags, v_group.limits::json, p_due_at);
  end loop;
end $$;

-- note_limited: claims look for what stands under limits in this queue, for good.
create or replace function tenure.note_limited(p_queue text) returns void
language plpgsql as $$
begin
  if not exists (select from tenure.limited_queue q where q.queue = p_queue) then
    insert into tenure.limited_queue (queue) values (p_queue);
  end if;
end $$;

-- line_id: the line of a job that stands under this. Costs and weights make no line of their own.
create or replace function tenure.line_id(p_queue text, p_kind text, p_limits json) returns uuid
language sql immutable as $$
  select encode(substring(sha256(convert_to(jsonb_build_array(p_queue, p_kind,
    (select coalesce(jsonb_agg(jsonb_build_array(u.entry ->> 'limit', u.entry ->> 'key') order by u.o), '[]') from json_array_elements(p_limits -> 'under') with ordinality as u(entry, o)),
    p_limits ->> 'fair', p_limits ->> 'order')::text, 'UTF8')) from 1 for 16), 'hex')::uuid
$$;

-- under_of: the limits that a job names, and its keys, in turns; no key: ''.
create or replace function tenure.under_of(p_limits json) returns text[]
language sql immutable as $$
  select coalesce(array_agg(p.part order by u.o, p.n), '{}')
  from json_array_elements(p_limits -> 'under') with ordinality as u(entry, o)
  cross join lateral (values (1, u.entry ->> 'limit'), (2, coalesce(u.entry ->> 'key', ''))) as p(n, part)
$$;

-- costs_of: what a job takes from the limits that it names, in their order; null: one from each.
create or replace function tenure.costs_of(p_limits json) returns integer[]
language sql immutable as $$
  select case when bool_or(u.entry ->> 'cost' is not null) then array_agg(coalesce((u.entry ->> 'cost')::integer, 1) order by u.o) end
  from json_array_elements(p_limits -> 'under') with ordinality as u(entry, o)
$$;

-- check_limits: what a job says it stands under, in the one form in which it is stored. Reads limit_rule. Errors: TN002.
create or replace function tenure.check_limits(p_limits json) returns json
language plpgsql stable as $$
declare
  c_under_max constant integer := 8;
  c_cost_max constant integer := 1000000;
  v_limits jsonb;
  v_under jsonb := '[]';
  v_entry jsonb;
  v_wrong text;
begin
  if p_limits is null or json_typeof(p_limits) <> 'object' then
    perform tenure.refuse('TN002', 'the limits of the job are no JSON object', 'Write {"under": [{"limit": "name", "key": "text"}], "fair": "key", "order": "key"}; use enqueue for a job without limits.');
  end if;
  begin
    v_limits := jsonb_strip_nulls(p_limits::jsonb);
  exception when others then
    perform tenure.refuse('TN002', 'the limits of the job hold text that PostgreSQL cannot store: ' || sqlerrm, E'Remove \\u0000 and unpaired surrogates.');
  end;
  select k.key into v_wrong from jsonb_object_keys(v_limits) as k(key) where k.key not in ('under', 'fair', 'share', 'order', 'failing') limit 1;
  if found then
    perform tenure.refuse('TN002', format('the limits of the job say "%s", which is not known', left(v_wrong, 40)), 'Known are under, fair, share, order and failing.');
  end if;
  if jsonb_typeof(coalesce(v_limits -> 'under', '[]')) <> 'array' or jsonb_array_length(coalesce(v_limits -> 'under', '[]')) > c_under_max then
    perform tenure.refuse('TN002', format('"under" is no array of at most %s limits', c_under_max), 'Write "under": [{"limit": "name", "key": "text"}].');
  end if;
  if coalesce(jsonb_array_length(v_limits -> 'under'), 0) = 0 and not v_limits ?| array['fair', 'order'] then
    perform tenure.refuse('TN002', 'the job stands under no limit, and has no fair key and no order', 'Name one of under, fair and order, or use enqueue.');
  end if;
  for v_entry in select u.entry from jsonb_array_elements(coalesce(v_limits -> 'under', '[]')) as u(entry) order by u.entry ->> 'limit' loop
    v_under := v_under || tenure.check_under(v_entry, c_cost_max);
  end loop;
  if (select count(distinct u.entry ->> 'limit') from jsonb_array_elements(v_under) as u(entry)) < jsonb_array_length(v_under) then
    perform tenure.refuse('TN002', format('the job names the limit "%s" twice', (select u.entry ->> 'limit' from jsonb_array_elements(v_under) as u(entry) group by 1 having count(*) > 1 order by 1 limit 1)), 'Name each limit once, with one key.');
  end if;
  perform tenure.check_name_of(n.what, v_limits -> n.field) from (values ('fair', 'fair key'), ('order', 'order key')) as n(field, what) where v_limits ? n.field;
  if v_limits ? 'share' and (not v_limits ? 'fair' or jsonb_typeof(v_limits -> 'share') <> 'number' or (v_limits ->> 'share')::numeric not between 0.001 and 1000) then
    perform tenure.refuse('TN002', format('the share %s is not a number from 0.001 to 1000 beside a fair key', v_limits ->> 'share'), 'A fair key has the share 1 unless it says another.');
  end if;
  if v_limits ? 'failing' and (not v_limits ? 'order' or v_limits ->> 'failing' not in ('block', 'aside')) then
    perform tenure.refuse('TN002', format('"failing": "%s" is not "block" or "aside" beside an order key', v_limits ->> 'failing'), 'block: those behind wait until the failed one is through, the default; aside: they go on.');
  end if;
  return jsonb_strip_nulls(jsonb_build_object('under', v_under, 'fair', v_limits -> 'fair', 'share', v_limits -> 'share', 'order', v_limits -> 'order',
                                              'failing', nullif(v_limits ->> 'failing', 'block')))::json;
end $$;

-- check_name_of: a name as JSON is a string; of a number or an object the text would do as one, and mean something else to who wrote it.
create or replace function tenure.check_name_of(p_what text, p_name jsonb) returns void
language plpgsql immutable as $$
begin
  if jsonb_typeof(p_name) <> 'string' then
    perform tenure.refuse('TN002', format('the %s %s is no string', p_what, left(p_name::text, 40)), 'A name is a string of 1 to 128 bytes.');
  end if;
  perform tenure.check_name(p_what, p_name #>> '{}');
end $$;

create or replace function tenure.check_under(p_entry jsonb, p_cost_max integer) returns jsonb
language plpgsql stable as $$
declare
  v_rule tenure.limit_rule;
  v_wrong text;
begin
  if jsonb_typeof(p_entry) <> 'object' then
    perform tenure.refuse('TN002', format('%s is no limit to stand under', left(p_entry::text, 40)), 'Write {"limit": "name", "key": "text", "cost": 1}; key and cost are optional.');
  end if;
  select k.key into v_wrong from jsonb_object_keys(p_entry) as k(key) where k.key not in ('limit', 'key', 'cost') limit 1;
  if found then
    perform tenure.refuse('TN002', format('a limit to stand under says "%s", which is not known', left(v_wrong, 40)), 'Known are limit, key and cost.');
  end if;
  perform tenure.check_name_of('limit', p_entry -> 'limit');
  select r.* into v_rule from tenure.limit_rule r where r.name = p_entry ->> 'limit';
  if not found then
    perform tenure.refuse('TN002', format('there is no limit "%s"', p_entry ->> 'limit'), format('Set it first, for instance by tenure.set_limit(%L, p_concurrency => 10); tenure.limits() shows those that are set.', p_entry ->> 'limit'));
  end if;
  if p_entry ? 'key' then
    perform tenure.check_name_of('key', p_entry -> 'key');
  elsif num_nonnulls(v_rule.concurrency, v_rule.rate) = 0 then
    perform tenure.refuse('TN002', format('the limit "%s" bounds keys alone, and the job names none', v_rule.name), 'Add "key" to it.');
  end if;
  if p_entry ? 'cost' and (jsonb_typeof(p_entry -> 'cost') <> 'number' or (p_entry ->> 'cost')::numeric not between 1 and p_cost_max
                           or (p_entry ->> 'cost')::numeric <> trunc((p_entry ->> 'cost')::numeric)) then
    perform tenure.refuse('TN002', format('the cost %s is no whole number from 1 to %s', p_entry ->> 'cost', p_cost_max), 'It is the number of tokens that the job takes from the rate; the default is 1.');
  end if;
  return jsonb_strip_nulls(jsonb_build_object('limit', p_entry -> 'limit', 'key', p_entry -> 'key', 'cost', nullif((p_entry ->> 'cost')::numeric::integer, 1)));
end $$;
