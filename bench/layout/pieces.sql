-- Arm "pieces": job id = block * 128 + n. A row of ready names its jobs by (block, mask); bit n of the mask, counted
-- from the left, is job n of the block. A lease row holds one piece or several, blocks and masks side by side.
--
-- psql variables: pieces = the most pieces in a lease row; walk = 'all' (look at all 128 bits) or 'set' (start at the
-- first set bit, and look at no other when there is only one).

set search_path = tenure_layout;

create sequence block;

create table ready (
  id bigint generated always as identity,
  queue text not null,
  priority smallint not null,
  kind text not null,
  attempt smallint not null default 0,
  flags smallint not null default 0,
  ready_at timestamptz not null default clock_timestamp(),
  block bigint not null,
  mask bit(128) not null,
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
  blocks bigint[] not null,
  masks bit(128)[] not null
) with (autovacuum_enabled = off);
create index on lease (worker_id);

-- The functions below are simple enough to be inlined, and have no settings of their own for that reason.
select :'walk' = 'set' as walk_set, :'walk' = 'all' as walk_all \gset
\if :walk_set
create function first_bit(p_mask bit) returns integer language sql immutable
as $$ select position(B'1' in p_mask) - 1 $$;
-- The last bit that can be set. There is no search from the right; one job is what
-- matters. An empty mask, which a piece has when its jobs are done before its neighbours', goes from -1 to -2.
create function last_bit(p_mask bit) returns integer language sql immutable
as $$ select case bit_count(p_mask) when 0 then -2 when 1 then position(B'1' in p_mask) - 1 else 127 end $$;
\else
create function first_bit(p_mask bit) returns integer language sql immutable as $$ select 0 $$;
create function last_bit(p_mask bit) returns integer language sql immutable as $$ select 127 $$;
\endif

\set body 'select ' :pieces
create function pieces_max() returns integer language sql immutable as :'body';

create function left_in(p_masks bit(128)[]) returns integer
language sql immutable
as $$ select sum(bit_count(u.mask))::integer from unnest(p_masks) as u (mask) $$;

create function enqueue(p_jobs integer, p_bundle integer) returns void
language plpgsql
set search_path = pg_catalog, tenure_layout, pg_temp
as $$
begin
  with numbered as materialized (
    select nextval('tenure_layout.block') as block, least(p_bundle, p_jobs - g) as jobs
    from generate_series(0, p_jobs - 1, p_bundle) as g
  ), stored as (
    insert into job (id, queue, kind, payload)
    select n.block * 128 + i, 'default', 'embed', '{"doc":12345,"model":"v1","opts":{"lang":"ko","chunk":512}}'
    from numbered n cross join generate_series(0, n.jobs - 1) as i
  )
  insert into ready (queue, priority, kind, block, mask)
  select 'default', 2, 'embed', n.block, ~ 0::bit(128) << (128 - n.jobs)
  from numbered n;
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
      select r.id, r.mask, bit_count(r.mask)::integer as jobs
      from ready r
      where r.queue = p_queue and r.priority = 2 and r.id > p_after and r.kind = any (p_kinds)
      order by r.id
      limit v_limit
      for update skip locked
    ), sized as materialized (
      select p.id, p.mask, p.jobs, least(p.jobs, v_missing - (sum(p.jobs) over (order by p.id) - p.jobs))::integer as taken
      from picked p
    ), gone as (
      delete from ready r
      using sized s
      where r.queue = p_queue and r.priority = 2 and r.id = s.id and s.taken = s.jobs
      returning r.id, r.kind, r.attempt, r.flags, r.block, r.mask
    ), divided as materialized (
      -- Where the first "taken" jobs end: the shortest prefix with that many set bits. The search starts at the
      -- first place where it can be, which is the answer whenever the jobs stand side by side.
      select s.id, s.mask, (
        select p
        from generate_series(position(B'1' in s.mask) - 1 + s.taken, 128) as p
        where bit_count(substring(s.mask for p)) = s.taken
        order by p
        limit 1
      ) as length
      from sized s
      where s.taken > 0 and s.taken < s.jobs
    ), cut as (
      -- d.mask is that of the picked row, the newest one and locked; r can be an older one until the update has
      -- followed it, so comparing the two here would refuse good cuts.
      update ready r
      set mask = d.mask & (~ 0::bit(128) >> d.length)
      from divided d
      where r.queue = p_queue and r.priority = 2 and r.id = d.id
      returning r.id, r.kind, r.attempt, r.flags, r.block, d.mask & (~ 0::bit(128) << (128 - d.length)) as mask
    ), taken as (
      select g.id, g.kind, g.attempt, g.flags, g.block, g.mask from gone g
      union all
      select c.id, c.kind, c.attempt, c.flags, c.block, c.mask from cut c
    ), numbered as (
      select t.kind, t.attempt, t.flags, t.block, t.mask,
             (row_number() over (partition by t.kind, t.attempt, t.flags) - 1) / pieces_max() as part
      from taken t
    ), leased as (
      insert into lease (worker_id, queue, priority, kind, attempt, flags, blocks, masks)
      select p_worker, p_queue, 2, n.kind, n.attempt + 1, n.flags, array_agg(n.block), array_agg(n.mask)
      from numbered n
      group by n.kind, n.attempt, n.flags, n.part
      returning lease.id, left_in(lease.masks) as jobs
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
    cross join unnest(l.blocks, l.masks) as p (block, mask)
    join job j on j.id >= p.block * 128 + first_bit(p.mask) and j.id <= p.block * 128 + last_bit(p.mask)
              and get_bit(p.mask, (j.id & 127)::integer) = 1;
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
    where l.id = f.id and l.worker_id = p_worker and left_in(l.masks) = f.jobs
      and exists (select from worker w where w.id = p_worker and w.lease_until > clock_timestamp())
    returning l.id, l.attempt, l.leased_at, l.blocks, l.masks
  ), expanded as (
    select g.id, g.attempt, g.leased_at, p.block, p.mask, generate_series(first_bit(p.mask), last_bit(p.mask)) as n
    from gone g cross join unnest(g.blocks, g.masks) as p (block, mask)
  ), ended as (
    insert into outcome (job_id, state, attempt, worker_id, lease_id, started_at)
    select e.block * 128 + e.n, 'c', e.attempt, p_worker, e.id, e.leased_at
    from expanded e
    where get_bit(e.mask, e.n) = 1
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
  with finished as (
    select u.lease_id, u.job_id >> 7 as block, bit_or(B'1'::bit(128) >> (u.job_id & 127)::integer) as mask
    from unnest(p_leases, p_jobs) as u (lease_id, job_id)
    group by u.lease_id, u.job_id >> 7
  ), folded as materialized (
    select f.lease_id, array_agg(f.block) as blocks, array_agg(f.mask) as masks
    from finished f
    group by f.lease_id
  ), held as materialized (
    -- What the lease has now, and what it keeps. A piece without jobs keeps its place as an empty mask.
    select l.id, l.masks, array(
        select p.mask & ~ coalesce(e.mask, 0::bit(128))
        from unnest(l.blocks, l.masks) with ordinality as p (block, mask, place)
        left join unnest(f.blocks, f.masks) as e (block, mask) on e.block = p.block
        order by p.place
      ) as kept, left_in(f.masks) as jobs
    from folded f join lease l on l.id = f.lease_id
    where l.worker_id = p_worker
      and exists (select from worker w where w.id = p_worker and w.lease_until > clock_timestamp())
  ), allowed as materialized (
    -- All or nothing for each lease: every named job must still be in it.
    select h.id, h.masks, h.kept, left_in(h.kept) as jobs_kept
    from held h
    where left_in(h.masks) - left_in(h.kept) = h.jobs
  ), gone as (
    -- "masks" is compared once more here and below: whoever changed the lease after it was read has won.
    delete from lease l
    using allowed a
    where l.id = a.id and a.jobs_kept = 0 and l.masks = a.masks
    returning l.id, l.attempt, l.leased_at
  ), cut as (
    update lease l
    set masks = a.kept
    from allowed a
    where l.id = a.id and a.jobs_kept > 0 and l.masks = a.masks
    returning l.id, l.attempt, l.leased_at
  ), done as (
    select g.id, g.attempt, g.leased_at from gone g
    union all
    select c.id, c.attempt, c.leased_at from cut c
  ), ended as (
    insert into outcome (job_id, state, attempt, worker_id, lease_id, started_at)
    select u.job_id, 'c', d.attempt, p_worker, d.id, d.leased_at
    from done d join unnest(p_leases, p_jobs) as u (lease_id, job_id) on u.lease_id = d.id
    returning outcome.job_id
  )
  select count(*) into v_done from ended;
  return v_done;
end
$$;

-- For the end of a run: what is still leased.
create view held as
  select l.id, l.worker_id, left_in(l.masks) as jobs_left from lease l;
