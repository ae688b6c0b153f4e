-- unhandled_kinds: jobs that could run now, of kinds that no worker of their queue which takes new jobs has a handler for: they wait for ever unless one comes.
-- Returns a row per queue and kind: how many wait, since when the oldest could have run, and, when a living worker of the queue has a handler
-- that turned out not to run, which one and why. Reads only. A queue that is paused, or whose workers are all away, is among them as far as
-- nobody handles the kind.
create or replace function tenure.unhandled_kinds() returns table (queue text, kind text, available bigint, oldest_due_at timestamptz, refused text)
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
  with waiting as materialized (
    select r.queue, r.kind, sum(bit_count(r.mask))::bigint as available, min(r.block) as first_block
    from (select x.queue, x.kind, x.block, x.mask from tenure.ready x union all select l.queue, l.kind, l.block, l.mask from tenure.limited l) r group by r.queue, r.kind),
  takers as materialized (select t.worker_id from tenure.takers() t)
  select w.queue, w.kind, w.available,
         (select min(coalesce(j.run_at, j.created_at)) from tenure.job j where j.id >= w.first_block * 128 and j.id < w.first_block * 128 + 128),
         tenure.refused_text(w.queue, w.kind)
  from waiting w
  where not exists (
    select from takers t join tenure.worker k on k.id = t.worker_id where w.queue = any(k.queues) and w.kind = any(k.kinds))
  order by w.queue, w.kind
$$;

-- takers: the workers that take new jobs: they show themselves, and are not drained. For people who look why a job waits.
create or replace function tenure.takers() returns table (worker_id bigint)
language sql stable rows 100 as $$
  select s.worker_id from tenure.sightings() s
  where s.by is null and not exists (select from tenure.worker_drain d where d.worker_id = s.worker_id)
$$;
