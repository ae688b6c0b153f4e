-- refuse_kinds: what a worker registered for and turned out not to be able to run (its program is missing, say), with the reasons; all such
-- kinds at each call. They leave its kinds, so that a job for which no other worker is there is seen to wait for one. For people to see in
-- waits_for and unhandled_kinds; what is claimed is the worker's own choice. A reason keeps its first 500 characters. False: the worker was given up.
-- Locks: the worker's row, waited for two seconds at most.
create or replace function tenure.refuse_kinds(p_worker bigint, p_token uuid, p_kinds text[], p_reasons text[]) returns boolean
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set plan_cache_mode = force_generic_plan set enable_seqscan = off set jit = off set lock_timeout = '2s' as $$
declare
  c_chars_max constant integer := 500;
begin
  if cardinality(p_kinds) is distinct from cardinality(p_reasons) or array_position(p_kinds, null) > 0 then
    perform tenure.refuse('TN002', format('refuse_kinds: %s kinds and %s reasons do not fit each other', coalesce(cardinality(p_kinds)::text, 'no'),
      coalesce(cardinality(p_reasons)::text, 'no')), 'Pass one reason per kind, and no nulls among the kinds.');
  end if;
  update tenure.worker w
    set kinds = array(select k.kind from unnest(w.kinds) with ordinality as k(kind, o) where k.kind <> all(p_kinds) order by k.o),
        refused_kinds = (select coalesce(jsonb_object_agg(r.kind, left(coalesce(r.reason, ''), c_chars_max)), '{}') from unnest(p_kinds, p_reasons) as r(kind, reason))
    where w.id = p_worker and w.token = p_token and w.dead_at is null;
  return found;
end $$;

-- refused_text: which living worker of a queue refuses a kind, and why; null: none does. The newest one of several: it is what was deployed last.
create or replace function tenure.refused_text(p_queue text, p_kind text) returns text
language sql stable as $$
  select format('worker %s (%s) refuses it: %s', w.id, w.name, w.refused_kinds ->> p_kind)
         || case count(*) over () when 1 then '' else format(' (and %s more refuse it)', count(*) over () - 1) end
  from tenure.worker w
  where w.refused_kinds ? p_kind and p_queue = any(w.queues) and w.id in (select s.worker_id from tenure.sightings() s where s.by is null)
  order by w.id desc limit 1
$$;
