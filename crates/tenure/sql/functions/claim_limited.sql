-- claim_limited: the part of a claim that gives out jobs which stand under limits. Transition: limited -> lease (running).
-- Parameters: as claim, for one queue; p_kinds are those that are open. Returns the new leases, the number of their jobs; busy: somebody else is at it,
-- so that it is worth while to come again in a moment; and look_at: something was left out, which can be looked at from then on; null: nothing.
-- Jobs that have just come are given out in their order, as long as their buckets have something for them; what has to wait, take turns or keep an order
-- moves to its line. Which of both comes first is left to chance.
-- Locks: the book, a transaction-level advisory lock that is never waited for. Whoever holds it, and nobody else, writes line, limit_bucket, lease_slot and
-- line_clock and takes rows from nudge. What it reads is what the holder before it committed, so that no two claims count the same place or token as free.
-- Rows of limited that somebody else holds, as who cancels them does, are passed over.
create or replace function tenure.claim_limited(p_worker bigint, p_queue text, p_want integer, p_kinds text[], p_solo_kinds text[], p_lanes integer[],
                                     out leases bigint[], out jobs integer, out busy boolean, out look_at timestamptz)
language plpgsql set enable_bitmapscan = off set enable_nestloop = off set enable_mergejoin = off as $$
declare
  c_lines constant integer := 1;
  c_fresh constant integer := 2;
  c_held constant interval := '100 milliseconds';   -- until rows that somebody holds are looked at again
  v_back constant boolean := coalesce(p_lanes[cardinality(p_lanes)] < p_lanes[cardinality(p_lanes) - 1], false);
  v_now timestamptz;
  v_part integer;
  v_some record;
begin
  leases := '{}';
  jobs := 0;
  busy := not pg_try_advisory_xact_lock(tenure.lock_class(), -6);
  if busy then
    return;
  end if;
  -- With a snapshot from before the lock it would count what others have taken since as free.
  if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
    perform tenure.refuse('TN002', format('jobs under limits cannot be claimed in a transaction that is %s', current_setting('transaction_isolation')), 'Claim under read committed.');
  end if;
  v_now := clock_timestamp();
  -- A kind that is named twice would be looked at twice, and its rows with it.
  p_kinds := array(select distinct u.kind from unnest(p_kinds) as u(kind) where u.kind is not null);
  if tenure.fold_nudges(p_queue, p_kinds, v_now) then
    look_at := v_now;
  end if;
  if tenure.line_up(p_queue, v_now) then
    look_at := v_now;
  end if;
  v_part := case when random() < 0.5 then c_lines else c_fresh end;
  for i in 1 .. 2 loop
    exit when jobs >= p_want;
    if v_part = c_lines then
      v_some := tenure.claim_lines(p_worker, p_queue, p_want - jobs, p_kinds, p_solo_kinds, v_back, v_now);
    else
      v_some := tenure.claim_fresh(p_worker, p_queue, p_want - jobs, p_kinds, p_solo_kinds, v_back, v_now);
    end if;
    leases := leases || v_some.leases;
    jobs := jobs + v_some.jobs;
    look_at := least(look_at, v_some.look_at);
    v_part := c_lines + c_fresh - v_part;
  end loop;
  if jobs < p_want and tenure.some_fresh(p_queue, p_kinds) then
    look_at := least(look_at, v_now + c_held);
  end if;
  perform tenure.note_open(p_queue, p_kinds);
end $$;
