-- keep: how long finished jobs are kept before retention removes them: a queue's own ages, or those of all queues.
-- set_keep sets one age. Parameters: p_queue (null: for all queues that have none of their own), p_outcome 'completed', 'cancelled' or 'dead',
-- p_ms 1 s to 100 years (null: as if it had never been set). An age of 0 is refused: to one it means "at once", to another "for ever".
-- Retention looks at every range anew. Locks: the queue's row, then those of walk_anew; none is waited for longer than 5 s.
create or replace function tenure.set_keep(p_queue text, p_outcome text, p_ms bigint) returns void
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp set lock_timeout = '5s' as $$
declare
  c_ms_min constant bigint := 1000;
  c_ms_max constant bigint := 3155760000000;  -- 100 years of 365.25 days
begin
  if p_outcome is null or p_outcome not in ('completed', 'cancelled', 'dead') then
    perform tenure.refuse('TN002', format('%L is no outcome that is kept', p_outcome), 'Use completed, cancelled or dead.');
  end if;
  if p_ms not between c_ms_min and c_ms_max then
    perform tenure.refuse('TN002', format('%s jobs cannot be kept for %s ms', p_outcome, p_ms),
                          'Use 1 second to 100 years, which stands for ever; null is the default.');
  end if;
  if p_queue is not null then
    perform tenure.check_name('queue', p_queue);
    insert into tenure.queue as q (name, keep_completed_ms, keep_cancelled_ms, keep_dead_ms)
      values (p_queue, case p_outcome when 'completed' then p_ms end, case p_outcome when 'cancelled' then p_ms end, case p_outcome when 'dead' then p_ms end)
      on conflict (name) do update
        set keep_completed_ms = case p_outcome when 'completed' then p_ms else q.keep_completed_ms end,
            keep_cancelled_ms = case p_outcome when 'cancelled' then p_ms else q.keep_cancelled_ms end,
            keep_dead_ms = case p_outcome when 'dead' then p_ms else q.keep_dead_ms end;
  elsif p_ms is null then
    delete from tenure.setting s where s.name = format('keep_%s_ms', p_outcome);
  else
    insert into tenure.setting as s (name, value) values (format('keep_%s_ms', p_outcome), p_ms::text)
      on conflict (name) do update set value = excluded.value;
  end if;
  perform tenure.walk_anew(false);
end $$;

-- keep_default: what queues without an age of their own keep, in ms. A setting that was written by hand is held to the limits.
-- This and the next two are asked at every step of retention: plpgsql keeps their plans.
create or replace function tenure.keep_default(p_outcome text) returns bigint
language plpgsql stable as $$
begin
  return least(greatest(coalesce((select s.value::bigint from tenure.setting s where s.name = 'keep_' || p_outcome || '_ms'),
                                 case p_outcome when 'dead' then 7776000000 else 604800000 end), 1000), 3155760000000);
end $$;

-- keep_shortest, keep_longest: no completed or cancelled job is due sooner after its end, or later.
create or replace function tenure.keep_shortest() returns interval
language plpgsql stable as $$
begin
  return interval '1 millisecond' * least(tenure.keep_default('completed'), tenure.keep_default('cancelled'),
    (select least(min(q.keep_completed_ms), min(q.keep_cancelled_ms)) from tenure.queue q));
end $$;

create or replace function tenure.keep_longest() returns interval
language plpgsql stable as $$
begin
  return interval '1 millisecond' * greatest(tenure.keep_default('completed'), tenure.keep_default('cancelled'),
    (select greatest(max(q.keep_completed_ms), max(q.keep_cancelled_ms)) from tenure.queue q));
end $$;

-- keeps: the defaults (queue is null), and what queues have set themselves.
create or replace function tenure.keeps() returns table (queue text, completed_ms bigint, cancelled_ms bigint, dead_ms bigint)
language sql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
  select null, tenure.keep_default('completed'), tenure.keep_default('cancelled'), tenure.keep_default('dead')
  union all
  select q.name, q.keep_completed_ms, q.keep_cancelled_ms, q.keep_dead_ms from tenure.queue q
  where coalesce(q.keep_completed_ms, q.keep_cancelled_ms, q.keep_dead_ms) is not null
$$;

-- ends_in: the ended jobs of a stretch of ids, in their order, and when each is due to be removed. A job that is older than any queue keeps is
-- due whatever its queue, and is not looked up; its created_at is null.
create or replace function tenure.ends_in(p_after bigint, p_before bigint, p_limit integer)
returns table (job_id bigint, state "char", created_at timestamptz, due_at timestamptz)
language plpgsql stable rows 1000 as $$
#variable_conflict use_column
declare
  v_surely constant timestamptz := clock_timestamp() - tenure.keep_longest();
  v_completed_ms constant bigint := tenure.keep_default('completed');
  v_cancelled_ms constant bigint := tenure.keep_default('cancelled');
begin
  return query
    select o.job_id, o.state, j.created_at,
           case when o.finished_at <= v_surely then o.finished_at else o.finished_at + interval '1 millisecond'
             * case o.state when 'c' then coalesce(q.keep_completed_ms, v_completed_ms) else coalesce(q.keep_cancelled_ms, v_cancelled_ms) end end
    from (select x.job_id, x.state, x.finished_at from tenure.outcome x
          where x.job_id > p_after and x.job_id < p_before order by x.job_id limit p_limit) o
    left join tenure.job j on j.id = case when o.finished_at > v_surely then o.job_id end
    left join tenure.queue q on q.name = j.queue
    order by o.job_id;
end $$;
