-- sleep: a worker asks to be woken by NOTIFY when work comes to one of its queues. It claims once more before it really sleeps.
-- wake: it is awake. wake_one: tells one sleeper of a queue, if there is one; nobody pays for NOTIFY while all are busy.
-- Only what was said in this minute or the one before counts, so that nobody walks through more than that of the dead rows that somebody's old snapshot
-- keeps: each sleep leaves one. A worker that sleeps on says so again within 45 s.
-- Channel: tenure_<worker id>, payloads of constant size. Locks: the worker's own rows of sleeper.
create or replace function tenure.sleep(p_worker bigint, p_token uuid, p_queues text[]) returns void
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
declare
  v_minute constant bigint := tenure.minute();
begin
  perform set_config('synchronous_commit', 'off', true);  -- a hint: losing it costs one poll interval
  insert into tenure.sleeper (queue, minute, worker_id)
    select q.queue, v_minute, w.id from tenure.worker w cross join unnest(p_queues) as q(queue)
    where w.id = p_worker and w.token = p_token and w.dead_at is null
    order by q.queue
    on conflict do nothing;
  delete from tenure.sleeper s using tenure.worker w
    where s.worker_id = p_worker and s.minute >= v_minute - 2 and s.minute < v_minute and s.queue = any(p_queues) and w.id = p_worker and w.token = p_token;
end $$;

create or replace function tenure.wake(p_worker bigint, p_token uuid) returns void
language plpgsql security definer
set search_path = pg_catalog, tenure, pg_temp set enable_seqscan = off set enable_bitmapscan = off set jit = off as $$
begin
  perform set_config('synchronous_commit', 'off', true);
  delete from tenure.sleeper s using tenure.worker w
    where s.worker_id = p_worker and s.minute >= tenure.minute() - 2 and w.id = p_worker and w.token = p_token;
end $$;

-- forget_sleepers: what a worker said and could not take back, as it was cut off or frozen for minutes, goes with the net. A minute is looked at once, when it
-- has counted for no one for a while, so that nobody walks again through the dead rows of its naps that somebody's old snapshot keeps. What is
-- said still later, by a transaction that was open for minutes, goes with its worker. Locks: those rows, skipping what others hold.
create or replace function tenure.forget_sleepers() returns bigint
language plpgsql set enable_seqscan = off set enable_bitmapscan = off set enable_hashjoin = off set enable_mergejoin = off set jit = off as $$
declare
  c_rows constant integer := 1000;
  v_from constant bigint := (select d.place from tenure.duty d where d.name = 'sleepers');
  v_to constant bigint := tenure.minute() - 3;
  v_rows bigint;
begin
  -- Worker by worker: the index is no help for a minute alone.
  with old as materialized (
    select x.queue, x.minute, x.worker_id from tenure.worker w
    cross join lateral (select y.queue, y.minute, y.worker_id from tenure.sleeper y where y.worker_id = w.id and y.minute > v_from and y.minute <= v_to
                        limit c_rows for update skip locked) x
    limit c_rows)
  delete from tenure.sleeper s using old o where s.queue = o.queue and s.minute = o.minute and s.worker_id = o.worker_id;
  get diagnostics v_rows = row_count;
  update tenure.duty d set place = v_to where d.name = 'sleepers' and v_rows < c_rows;
  return v_rows;
end $$;

-- minute: the number of this minute.
create or replace function tenure.minute() returns bigint
language sql stable as $$ select floor(extract(epoch from clock_timestamp()) / 60)::bigint $$;

-- tell: one word to one worker. When somebody listens and does not read, the server's room for notifications fills up, and with it full
-- every transaction that notifies is refused at its commit, where nothing can be caught. A word is a hint that polling makes up for,
-- so none is sent any more once half of the room is used.
create or replace function tenure.tell(p_worker bigint, p_word text) returns void
language plpgsql as $$
declare
  c_room_used_max constant double precision := 0.5;
begin
  if pg_notification_queue_usage() > c_room_used_max then
    raise warning 'tenure: workers are not woken, they find their work by polling: % %% of the room for notifications is used',
      round(pg_notification_queue_usage() * 100)
      using hint = 'Some session listens and sits in a transaction: look for the oldest xact_start in pg_stat_activity.';
    return;
  end if;
  perform pg_notify('tenure_' || p_worker, p_word);
end $$;

create or replace function tenure.wake_one(p_queue text) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_worker bigint;
begin
  select s.worker_id into v_worker from tenure.sleeper s where s.queue = p_queue and s.minute >= tenure.minute() - 1 order by random() limit 1;
  if found then
    perform tenure.tell(v_worker, 'work');
  end if;
end $$;

-- wake_near: something becomes due before whoever sleeps looks again by himself: one is told, and sleeps until then.
create or replace function tenure.wake_near(p_queue text, p_due_at timestamptz, p_now timestamptz) returns void
language plpgsql as $$
declare
  c_near constant interval := '2 seconds';
begin
  if p_due_at <= p_now + c_near then
    perform tenure.wake_one(p_queue);
  end if;
end $$;

-- wake_next: a claim that got all it wanted leaves more behind; the next sleeper is told, so that a burst wakes one after another.
create or replace function tenure.wake_next(p_queue text, p_worker bigint) returns void
language plpgsql set enable_seqscan = off set enable_bitmapscan = off as $$
declare
  v_worker bigint;
begin
  select s.worker_id into v_worker from tenure.sleeper s
    where s.queue = p_queue and s.minute >= tenure.minute() - 1 and s.worker_id <> p_worker order by random() limit 1;
  if found then
    perform tenure.tell(v_worker, 'work');
  end if;
end $$;
