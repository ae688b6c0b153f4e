-- waits_for: why a job does not run now: one reason, the one to look at first. No row: it runs, it has ended, or there is no such job.
-- A job that is with a worker that looks lost waits too: to be given away, which somebody else has to do.
-- Reasons: worker_suspected · held · limit · order · fair_turn · queue_paused · kind_paused · not_due · being_moved · no_worker · suspect · turn. Locks: none.
create or replace function tenure.waits_for(p_job bigint) returns table (reason text, explained text)
language plpgsql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
#variable_conflict use_column
declare
  v_job record;
  v_queue record;
  v_kind record;
  v_held text;
begin
  select j.status, j.queue, j.kind, j.run_at, r.flags, r.priority as lane into v_job
    from tenure.jobs j
    left join lateral (select r.flags, r.priority from tenure.ready r
                       where r.block = j.id >> 7 and r.queue = j.queue and get_bit(r.mask, (j.id & 127)::integer) = 1
                         and (r.id <> r.block or (r.id = j.id >> 7 and r.priority = j.priority)) limit 1) r on j.status = 'available'
    where j.id = p_job;
  if v_job.status = 'running' then
    return query
      select 'worker_suspected', format('worker %s ("%s", process %s on %s) looks lost; it was heard of last at %s. %s', w.id, w.name, w.pid, w.host, tenure.instant_text(w.seen_at),
        case when exists (select from tenure.sightings() o where o.worker_id <> w.id and o.by is null) then 'Another worker gives the job away in a moment'
             else 'No other worker is there: the job is given away as soon as one starts' end)
      from tenure.lease_of(p_job) l join tenure.worker w on w.id = l.worker_id left join tenure.sightings() s on s.worker_id = w.id
      where w.dead_at is not null or s.by is not null;
    return;
  end if;
  if v_job.status is null or v_job.status in ('completed', 'cancelled', 'dead') then
    return;
  end if;
  if v_job.status = 'held' and exists (select from tenure.job j where j.id = p_job and j.limits is not null) then
    return query select l.reason, l.explained from tenure.limited_reason(p_job) l;
    if found then
      return;
    end if;
  elsif v_job.status = 'held' then
    select h.reason into v_held from tenure.held h where h.block = p_job >> 7 and get_bit(h.mask, (p_job & 127)::integer) = 1;
    return query select 'held', coalesce(v_held, 'it waits for something else');
    return;
  end if;
  select q.name, q.paused_at, q.paused_by, q.pause_reason into v_queue from tenure.queue q where q.name = v_job.queue and q.paused_at is not null;
  if found then
    return query select 'queue_paused', tenure.pause_text(format('the queue %s', v_job.queue), v_queue.paused_at, v_queue.paused_by, v_queue.pause_reason);
    return;
  end if;
  select k.queue, k.paused_at, k.paused_by, k.pause_reason into v_kind from tenure.kind_pause k
    where k.kind = v_job.kind and (k.queue is null or k.queue = v_job.queue) order by k.queue nulls first limit 1;
  if found then
    return query select 'kind_paused', tenure.pause_text(format('the kind %s', v_job.kind) || coalesce(' in the queue ' || v_kind.queue, ''),
                                                         v_kind.paused_at, v_kind.paused_by, v_kind.pause_reason);
    return;
  end if;
  if v_job.status <> 'available' and v_job.run_at > clock_timestamp() then
    return query select 'not_due', format('%s: it is due at %s', v_job.status, tenure.instant_text(v_job.run_at));
    return;
  end if;
  if not exists (select from tenure.takers() t join tenure.worker w on w.id = t.worker_id where v_job.queue = any(w.queues) and v_job.kind = any(w.kinds)) then
    return query select 'no_worker', format('no worker takes jobs of the kind %s from the queue %s', v_job.kind, v_job.queue)
                                     || coalesce(': ' || tenure.refused_text(v_job.queue, v_job.kind), '');
  elsif v_job.status <> 'available' then
    return query select 'being_moved', 'it is due, and becomes available at the next turn of maintenance';
  elsif v_job.lane = -1 then
    return query select 'suspect', 'two workers were lost with it: it waits for one that runs no other such job';
  else
    return query select 'turn', 'it waits for its turn: the workers of its queue run other jobs';
  end if;
end $$;

-- pause_text: what is paused, since when, by whom, and why.
create or replace function tenure.pause_text(p_what text, p_at timestamptz, p_by text, p_reason text) returns text
language sql stable as $$
  select format('%s is paused since %s', p_what, tenure.instant_text(p_at)) || coalesce(' by ' || p_by, '') || coalesce(': ' || p_reason, '')
$$;

create or replace function tenure.instant_text(p_at timestamptz) returns text
language sql stable as $$ select to_char(p_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') $$;
