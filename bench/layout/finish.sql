-- After the clock has stopped: completes what the clients left leased or ready, so that the run can be checked, and
-- prints nothing but the faults. A job that was completed twice has already stopped the run (outcome_pkey).

set search_path = tenure_layout;

do $$
begin
  perform complete(h.worker_id, array_agg(h.id), array_agg(h.jobs_left)) from held h group by h.worker_id;
  for pass in 1 .. 10000 loop
    exit when not exists (select from ready);
    perform complete(1, c.leases, c.lefts) from claim(1, 'default', '{embed}', 1000, 0) as c where c.job_id is null;
  end loop;
end
$$;

select f.fault
from (
  select 'job ' || j.id || ' was not completed' as fault
  from job j left join outcome o on o.job_id = j.id where o.job_id is null
  union all
  select 'outcome of a job that does not exist: ' || o.job_id
  from outcome o left join job j on j.id = o.job_id where j.id is null
  union all
  select 'ready is left: ' || r.id from ready r
  union all
  select 'lease is left: ' || l.id from lease l
) as f
order by f.fault
limit 5;
