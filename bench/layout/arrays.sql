-- Arm "arrays": rows of ready and lease name their jobs by bigint[]. One lease row for each signature
-- (kind, attempt, flags) of a claim, so that many single jobs share one row.

set search_path = tenure_layout;

create sequence job_id;

create table ready (
  id bigint generated always as identity,
  queue text not null,
  priority smallint not null,
  kind text not null,
  attempt smallint not null default 0,
  flags smallint not null default 0,
  ready_at timestamptz not null default clock_timestamp(),
  job_ids bigint[] not null,
  primary key (queue, priority, id)
) with (autovacuum_enabled = off);

create table lease (
  id bigint generated always as identity primary key,
  worker_id integer not null,
  queue text not null,
  priority smallint not null,
  kind text not null,
  attempt smallint not null,
  flags smallint not null,
  leased_at timestamptz not null default clock_timestamp(),
  job_ids bigint[] not null
) with (autovacuum_enabled = off);
create index on lease (worker_id);

create function enqueue(p_jobs integer, p_bundle integer) returns void
language plpgsql
set search_path = pg_catalog, tenure_layout, pg_temp
as $$
begin
  with numbered as materialized (
    select nextval('tenure_layout.job_id') as id, g / p_bundle as bundle
    from generate_series(0, p_jobs - 1) as g
  ), stored as (
    insert into job (id, queue, kind, payload)
    select n.id, 'default', 'embed', '{"doc":12345,"model":"v1","opts":{"lang":"ko","chunk":512}}'
    from numbered n
  )
  insert into ready (queue, priority, kind, job_ids)
  select 'default', 2, 'embed', array_agg(n.id)
  from numbered n
  group by n.bundle;
end
$$;

-- Returns a row for each job and then one more, the receipt: the leases and how many jobs each one has.
-- A real client counts for itself; pgbench keeps nothing but the last row of a result.
create function claim(p_worker integer, p_queue text, p_kinds text[], p_want integer, p_after bigint)
returns table (lease_id bigint, job_id bigint, kind text, attempt smallint, payload jsonb,
               after_id bigint, leases bigint[], lefts integer[])
language plpgsql
set search_path = pg_catalog, tenure_layout, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
#variable_conflict use_column
declare
  v_missing integer := p_want;
  v_limit integer := 1;
  v_seen integer;
  v_last bigint;
  v_new bigint[];
  v_sizes integer[];
  v_got integer;
begin
  leases := '{}';
  lefts := '{}';
  if not exists (select from worker w where w.id = p_worker and w.lease_until > clock_timestamp()) then
    return;
  end if;
  loop
    with picked as materialized (
      select r.id, r.job_ids, cardinality(r.job_ids) as jobs
      from ready r
      where r.queue = p_queue and r.priority = 2 and r.id > p_after and r.kind = any (p_kinds)
      order by r.id
      limit v_limit
      for update skip locked
    ), sized as materialized (
      select p.id, p.job_ids, p.jobs, least(p.jobs, v_missing - (sum(p.jobs) over (order by p.id) - p.jobs))::integer as taken
      from picked p
    ), gone as (
      delete from ready r
      using sized s
      where r.queue = p_queue and r.priority = 2 and r.id = s.id and s.taken = s.jobs
      returning r.id, r.kind, r.attempt, r.flags, r.job_ids
    ), cut as (
      -- The ids come from the picked row, which is the newest one and locked; r can be an older one until the
      -- update has followed it, so comparing the two here would refuse good cuts.
      update ready r
      set job_ids = s.job_ids[s.taken + 1 :]
      from sized s
      where r.queue = p_queue and r.priority = 2 and r.id = s.id and s.taken > 0 and s.taken < s.jobs
      returning r.id, r.kind, r.attempt, r.flags, s.job_ids[: s.taken] as job_ids
    ), taken as (
      select g.id, g.kind, g.attempt, g.flags, g.job_ids from gone g
      union all
      select c.id, c.kind, c.attempt, c.flags, c.job_ids from cut c
    ), leased as (
      insert into lease (worker_id, queue, priority, kind, attempt, flags, job_ids)
      select p_worker, p_queue, 2, t.kind, t.attempt + 1, t.flags, array_agg(u.job_id)
      from taken t cross join unnest(t.job_ids) as u (job_id)
      group by t.kind, t.attempt, t.flags
      returning lease.id, cardinality(lease.job_ids) as jobs
    )
    select array_agg(l.id), array_agg(l.jobs), sum(l.jobs),
           (select max(g.id) from gone g), (select count(*) from picked p)
    into v_new, v_sizes, v_got, v_last, v_seen
    from leased l;

    exit when v_seen = 0;
    -- Picked and not leased: newer than this pass's snapshot. The next pass sees it, and nobody else can take it.
    continue when v_new is null;
    leases := leases || v_new;
    lefts := lefts || v_sizes;
    v_missing := v_missing - v_got;
    p_after := coalesce(v_last, p_after);
    exit when v_missing <= 0 or v_seen < v_limit;
    -- Bundles are of one size for long stretches: what this pass found says how many rows the next one needs.
    v_limit := least(v_missing, greatest(1, v_missing * v_seen / v_got));
  end loop;

  return query
    select l.id, j.id, j.kind, l.attempt, j.payload, null::bigint, null::bigint[], null::integer[]
    from unnest(leases) as n (id)
    join lease l on l.id = n.id
    cross join unnest(l.job_ids) as u (job_id)
    join job j on j.id = u.job_id;
  after_id := p_after;
  return next;
end
$$;

-- Completes all that is left of the named leases. A lease that lost jobs meanwhile does not match its count.
create function complete(p_worker integer, p_leases bigint[], p_lefts integer[]) returns bigint
language plpgsql
set search_path = pg_catalog, tenure_layout, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_done bigint;
begin
  with gone as (
    delete from lease l
    using unnest(p_leases, p_lefts) as f (id, jobs)
    where l.id = f.id and l.worker_id = p_worker and cardinality(l.job_ids) = f.jobs
      and exists (select from worker w where w.id = p_worker and w.lease_until > clock_timestamp())
    returning l.id, l.attempt, l.leased_at, l.job_ids
  ), ended as (
    insert into outcome (job_id, state, attempt, worker_id, lease_id, started_at)
    select u.job_id, 'c', g.attempt, p_worker, g.id, g.leased_at
    from gone g cross join unnest(g.job_ids) as u (job_id)
    returning outcome.job_id
  )
  select count(*) into v_done from ended;
  return v_done;
end
$$;

-- Completes some jobs of some leases, named as pairs (lease, job).
create function complete_part(p_worker integer, p_leases bigint[], p_jobs bigint[]) returns bigint
language plpgsql
set search_path = pg_catalog, tenure_layout, pg_temp
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $$
declare
  v_done bigint;
begin
  with finished as materialized (
    select u.lease_id, array_agg(u.job_id) as job_ids
    from unnest(p_leases, p_jobs) as u (lease_id, job_id)
    group by u.lease_id
  ), gone as (
    delete from lease l
    using finished f
    where l.id = f.lease_id and l.worker_id = p_worker
      and cardinality(l.job_ids) = cardinality(f.job_ids) and l.job_ids <@ f.job_ids
      and exists (select from worker w where w.id = p_worker and w.lease_until > clock_timestamp())
    returning l.id, l.attempt, l.leased_at, f.job_ids
  ), cut as (
    update lease l
    set job_ids = array(select u.job_id from unnest(l.job_ids) as u (job_id) where u.job_id <> all (f.job_ids))
    from finished f
    where l.id = f.lease_id and l.worker_id = p_worker
      and cardinality(l.job_ids) > cardinality(f.job_ids) and f.job_ids <@ l.job_ids
      and exists (select from worker w where w.id = p_worker and w.lease_until > clock_timestamp())
    returning l.id, l.attempt, l.leased_at, f.job_ids
  ), done as (
    select g.id, g.attempt, g.leased_at, g.job_ids from gone g
    union all
    select c.id, c.attempt, c.leased_at, c.job_ids from cut c
  ), ended as (
    insert into outcome (job_id, state, attempt, worker_id, lease_id, started_at)
    select u.job_id, 'c', d.attempt, p_worker, d.id, d.leased_at
    from done d cross join unnest(d.job_ids) as u (job_id)
    returning outcome.job_id
  )
  select count(*) into v_done from ended;
  return v_done;
end
$$;

-- For the end of a run: what is still leased.
create view held as
  select l.id, l.worker_id, cardinality(l.job_ids) as jobs_left from lease l;
