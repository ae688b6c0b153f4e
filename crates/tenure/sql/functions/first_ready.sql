-- first_ready: the smallest id in a lane above p_after that a plain read sees, locked by somebody or not.
-- A floor never moves past it. Null: none. Called by claim, whose plan settings hold here too.
create or replace function tenure.first_ready(p_queue text, p_lane smallint, p_kinds text[], p_after bigint) returns bigint
language plpgsql as $$
begin
  return (select r.id from tenure.ready r
          where r.queue = p_queue and r.priority = p_lane and r.id > p_after and r.kind = any(p_kinds) order by r.id limit 1);
end $$;
