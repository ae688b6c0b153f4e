-- first_rows: the first row after its cursor that stands at each place of the queues from p_from to before p_to (the first is 0), null where there is none or nothing is wanted.
-- Parameters: as claim. What claim looks up itself for few queues, which pay no call for it.
create or replace function tenure.first_rows(p_queues text[], p_wants integer[], p_lanes integer[], p_after bigint[], p_from integer, p_to integer) returns bigint[]
language plpgsql stable as $$
declare
  v_lanes constant integer := cardinality(p_lanes);
begin
  return array(
    select case when p_wants[g.n / v_lanes + 1] > 0 then (
             select r.id from tenure.ready r
             where r.queue = p_queues[g.n / v_lanes + 1] and r.priority = p_lanes[g.n % v_lanes + 1] and r.id > p_after[g.n + 1] order by r.id limit 1) end
    from generate_series(p_from * v_lanes, least(p_to * v_lanes, cardinality(p_after)) - 1) as g(n) order by g.n);
end $$;
