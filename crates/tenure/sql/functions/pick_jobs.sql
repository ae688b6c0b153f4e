-- pick_jobs: the ids of jobs for a list, newest first. Cheap with millions of jobs: it looks at the tables of the states that are named, counts
-- bundles and not jobs where bundles are stored, and stops at the limit.
-- Parameters: statuses (null or none: any), queue and kind (null: any); only ids below p_before (null: from the newest); 1 to 1000 of them.
-- A dead letter that was requeued is not among those of the status dead, as it is open no longer, unless p_requeued says so.
-- Locks: none.
create or replace function tenure.pick_jobs(p_statuses text[], p_queue text, p_kind text, p_before bigint, p_limit integer, p_requeued boolean default false)
returns setof bigint
language plpgsql stable rows 50 security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  v_before bigint := coalesce(p_before, 9223372036854775807);
  v_limit integer := least(greatest(p_limit, 1), 1000);
begin
  if coalesce(cardinality(p_statuses), 0) = 0 then
    return query select j.id from tenure.job j
      where j.id < v_before and (p_queue is null or j.queue = p_queue) and (p_kind is null or j.kind = p_kind)
      order by j.id desc limit v_limit;
    return;
  end if;
  return query select distinct p.id
    from unnest(p_statuses) as u(status) cross join lateral tenure.pick_in_state(u.status, p_queue, p_kind, v_before, v_limit, p_requeued) as p(id)
    order by p.id desc limit v_limit;
end $$;

-- The same for one state. All rows of the last block are looked at, for the jobs of one block stand in them in any order.
create or replace function tenure.pick_in_state(p_status text, p_queue text, p_kind text, p_before bigint, p_limit integer, p_requeued boolean) returns setof bigint
language plpgsql stable rows 50 as $$
begin
  case
    when p_status = 'available' then
      return query select n.job_id
        from (select r.block, r.mask from tenure.ready r
              where r.block <= p_before >> 7 and (p_queue is null or r.queue = p_queue) and (p_kind is null or r.kind = p_kind)
              order by r.block desc fetch first (p_limit + 128) rows with ties) b
        cross join lateral tenure.jobs_in(array[b.block], b.mask) n
        where n.job_id < p_before order by n.job_id desc limit p_limit;
    when p_status in ('scheduled', 'retrying', 'snoozed') then
      return query select n.job_id
        from (select t.block, t.mask from tenure.later t
              where t.block <= p_before >> 7 and t.reason = case p_status when 'scheduled' then 's' when 'retrying' then 'r' else 'z' end::"char"
                and (p_queue is null or t.queue = p_queue) and (p_kind is null or t.kind = p_kind)
              order by t.block desc fetch first (p_limit + 128) rows with ties) b
        cross join lateral tenure.jobs_in(array[b.block], b.mask) n
        where n.job_id < p_before order by n.job_id desc limit p_limit;
    when p_status = 'held' then
      return query select n.job_id
        from (select h.block, h.mask
              from (select x.block, x.mask, x.queue, x.kind from tenure.held x union all select l.block, l.mask, l.queue, l.kind from tenure.limited l) h
              where h.block <= p_before >> 7 and (p_queue is null or h.queue = p_queue) and (p_kind is null or h.kind = p_kind)
              order by h.block desc fetch first (p_limit + 128) rows with ties) b
        cross join lateral tenure.jobs_in(array[b.block], b.mask) n
        where n.job_id < p_before order by n.job_id desc limit p_limit;
    when p_status = 'running' then
      return query select n.job_id
        from tenure.lease l cross join lateral tenure.jobs_in(l.blocks, l.strip) n
        where n.job_id < p_before and (p_queue is null or l.queue = p_queue) and (p_kind is null or l.kind = p_kind)
        order by n.job_id desc limit p_limit;
    when p_status in ('completed', 'cancelled') then
      return query select o.job_id from tenure.outcome o
        where o.job_id < p_before and o.state = case p_status when 'completed' then 'c' else 'x' end::"char"
          and (p_queue is null and p_kind is null or exists (
            select from tenure.job j where j.id = o.job_id and (p_queue is null or j.queue = p_queue) and (p_kind is null or j.kind = p_kind)))
        order by o.job_id desc limit p_limit;
    when p_status = 'dead' then
      return query select d.job_id from tenure.dead_letter d left join tenure.replacement x on x.job_id = d.job_id
        where d.job_id < p_before and (p_requeued or x.job_id is null) and (p_queue is null or d.queue = p_queue) and (p_kind is null or d.kind = p_kind)
        order by d.job_id desc limit p_limit;
    else
      perform tenure.refuse('TN002', format('%L is no state of a job', p_status),
        'Use available, scheduled, retrying, snoozed, held, running, completed, cancelled or dead.');
  end case;
end $$;
