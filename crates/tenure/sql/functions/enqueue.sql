-- enqueue: one job, in the caller's transaction. For payloads that are no json: any_json.sql.
-- Transition: none -> ready (available), or none -> later (scheduled) when due in the future.
-- Parameters: docs/guide/job.md; null run_at and delay mean at once. Returns the id. Errors: TN002; TN007 and TN005 in a queue that is bounded (admit.sql).
-- Locks: none that another enqueue or a claim waits for, but those of admit in a queue that is bounded. The transaction gets its id before a block is drawn: cursors rely on it.
create or replace function tenure.enqueue(p_kind text, p_payload json, p_queue text default 'default', p_priority integer default 2,
                               p_run_at timestamptz default null, p_delay_ms bigint default null,
                               p_max_attempts integer default 5, p_timeout_ms bigint default null) returns bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  v_now timestamptz := clock_timestamp();
  v_due_at timestamptz;
  v_bounded boolean;
  v_block bigint;
begin
  perform tenure.check_job(p_kind, p_queue, p_priority, p_run_at, p_delay_ms, p_max_attempts, p_timeout_ms);
  v_due_at := coalesce(p_run_at, v_now + p_delay_ms * interval '1 millisecond');
  perform tenure.check_payload(p_payload);
  select b.queue is not null into v_bounded from pg_current_xact_id() as x(id) left join tenure.queue_bound b on b.queue = p_queue;
  if v_bounded then
    v_bounded := tenure.admit(array[p_queue], array[null], array[1]) <> '{}';
  end if;
  v_block := nextval('tenure.block_id');
  if v_bounded then
    perform tenure.note_members(p_queue, null, array[v_block], array[1]);
  end if;
  insert into tenure.job (id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, payload)
    values (v_block * 128, p_queue, p_kind, p_priority, p_max_attempts, p_timeout_ms, v_now, v_due_at, p_payload);
  if v_due_at > v_now then
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
      values (v_block, v_block, v_due_at, 's', p_queue, p_priority, p_kind, 0, 0, tenure.mask_fresh(1));
    perform tenure.wake_near(p_queue, v_due_at, v_now);
  else
    insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
      values (p_queue, p_priority, v_block, p_kind, 0, 0, v_block, tenure.mask_fresh(1));
    perform tenure.wake_one(p_queue);
  end if;
  return v_block * 128;
end $$;

-- enqueue_many: jobs of one kind, that share bundles. Returns the ids in the order of the payloads.
create or replace function tenure.enqueue_many(p_kind text, p_payloads json[], p_queue text default 'default', p_priority integer default 2,
                                    p_run_at timestamptz default null, p_delay_ms bigint default null,
                                    p_max_attempts integer default 5, p_timeout_ms bigint default null) returns setof bigint
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
begin
  return query
    select generate_series(b.first_job, b.first_job + b.jobs - 1)
    from tenure.enqueue_bundles(p_kind, p_payloads, p_queue, p_priority, p_run_at, p_delay_ms, p_max_attempts, p_timeout_ms) b;
end $$;

-- enqueue_bundles: the same. Returns a row for each bundle, in the order of the payloads: its jobs have ids that follow one another, so that a client of many jobs
-- reads a hundredth of the rows.
create or replace function tenure.enqueue_bundles(p_kind text, p_payloads json[], p_queue text default 'default', p_priority integer default 2,
                                       p_run_at timestamptz default null, p_delay_ms bigint default null,
                                       p_max_attempts integer default 5, p_timeout_ms bigint default null) returns table (first_job bigint, jobs integer)
language plpgsql security definer set search_path = pg_catalog, tenure, pg_temp as $$
declare
  c_bundle_jobs constant integer := 100;  -- as many as a claim takes by default, so that it cuts none
  v_now timestamptz := clock_timestamp();
  v_due_at timestamptz;
  v_jobs integer := coalesce(cardinality(p_payloads), 0);
  v_bounded boolean;
  v_blocks bigint[];
begin
  perform tenure.check_job(p_kind, p_queue, p_priority, p_run_at, p_delay_ms, p_max_attempts, p_timeout_ms);
  v_due_at := coalesce(p_run_at, v_now + p_delay_ms * interval '1 millisecond');
  if v_jobs = 0 then
    return;
  end if;
  -- Only what may be refused is looked at one by one. Arrays are unnested in the list of columns: as a source of rows they would be stored once more.
  perform tenure.check_payload(u.payload) from (select unnest(p_payloads) as payload) u
    where u.payload is null or octet_length(u.payload::text) > 65536 or position(E'\\u' in u.payload::text) > 0;
  select b.queue is not null into v_bounded from pg_current_xact_id() as x(id) left join tenure.queue_bound b on b.queue = p_queue;
  if v_bounded then
    v_bounded := tenure.admit(array[p_queue], array[null], array[v_jobs]) <> '{}';
  end if;
  v_blocks := array(select nextval('tenure.block_id') from generate_series(1, (v_jobs + c_bundle_jobs - 1) / c_bundle_jobs));
  if v_bounded then
    perform tenure.note_members(p_queue, null, v_blocks, array(select least(c_bundle_jobs, v_jobs - (b.o - 1) * c_bundle_jobs) from generate_series(1, cardinality(v_blocks)) as b(o)));
  end if;
  insert into tenure.job (id, queue, kind, priority, max_attempts, timeout_ms, created_at, run_at, payload)
    select v_blocks[u.n / c_bundle_jobs + 1] * 128 + u.n % c_bundle_jobs, p_queue, p_kind, p_priority,
           p_max_attempts, p_timeout_ms, v_now, v_due_at, u.payload
    from (select generate_series(0, v_jobs - 1) as n, unnest(p_payloads) as payload) u;
  if v_due_at > v_now then
    insert into tenure.later (block, id, due_at, reason, queue, priority, kind, attempt, flags, mask)
      select b.block, b.block, v_due_at, 's', p_queue, p_priority, p_kind, 0, 0,
             tenure.mask_fresh(least(c_bundle_jobs, v_jobs - (b.o::integer - 1) * c_bundle_jobs))
      from unnest(v_blocks) with ordinality as b(block, o);
    perform tenure.wake_near(p_queue, v_due_at, v_now);
  else
    insert into tenure.ready (queue, priority, id, kind, attempt, flags, block, mask)
      select p_queue, p_priority, b.block, p_kind, 0, 0, b.block,
             tenure.mask_fresh(least(c_bundle_jobs, v_jobs - (b.o::integer - 1) * c_bundle_jobs))
      from unnest(v_blocks) with ordinality as b(block, o);
    perform tenure.wake_one(p_queue);
  end if;
  return query select b.block * 128, least(c_bundle_jobs, v_jobs - (b.o::integer - 1) * c_bundle_jobs) from unnest(v_blocks) with ordinality as b(block, o) order by b.o;
end $$;
