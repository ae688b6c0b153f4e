-- check_job: refuses what an enqueue must not store. Reads setting only for payloads above the usual limit.
-- Parameters: as enqueue.
create or replace function tenure.check_name(p_what text, p_name text) returns void
language plpgsql immutable as $$
begin
  if p_name is null or octet_length(p_name) not between 1 and 128 then
    perform tenure.refuse('TN002', format('%s "%s" has %s bytes', p_what, left(p_name, 40), coalesce(octet_length(p_name), 0)),
                          'A name has 1 to 128 bytes.');
  end if;
  if p_name ~ '[\u0001-\u001f\u007f-\u009f]' then
    perform tenure.refuse('TN002', format('%s "%s" holds a control character', p_what, left(p_name, 40)),
                          'A name has 1 to 128 bytes and no control characters.');
  end if;
end $$;

create or replace function tenure.check_payload(p_payload json) returns void
language plpgsql stable as $$
declare
  c_payload_bytes constant bigint := 65536;
  c_payload_bytes_max constant bigint := 16777216;
  v_bytes bigint := octet_length(p_payload::text);
  v_max bigint;
begin
  if p_payload is null then
    perform tenure.refuse('TN002', 'the payload is missing (SQL null)', 'Pass JSON; the JSON value null is written ''null''.');
  end if;
  if v_bytes > c_payload_bytes then
    select least(s.value::bigint, c_payload_bytes_max) into v_max from tenure.setting s where s.name = 'payload_bytes';
    v_max := coalesce(v_max, c_payload_bytes);
    if v_bytes > v_max then
      perform tenure.refuse('TN002', format('the payload has %s bytes; the limit is %s', v_bytes, v_max),
        'Store the document elsewhere and enqueue its id, or raise the setting payload_bytes (at most 16777216).');
    end if;
  end if;
  if position(E'\\u' in p_payload::text) > 0 then
    begin
      perform p_payload::jsonb;
    exception when others then
      perform tenure.refuse('TN002', 'the payload holds text that PostgreSQL cannot store: ' || sqlerrm,
        E'Remove \\u0000 and unpaired surrogates, or encode such bytes, for instance as base64.');
    end;
  end if;
end $$;

create or replace function tenure.check_run_at(p_run_at timestamptz) returns void
language plpgsql stable as $$
begin
  if p_run_at = '-infinity' then
    perform tenure.refuse('TN002', 'run_at -infinity is no instant', 'Leave it out for at once.');
  end if;
  if p_run_at > clock_timestamp() + interval '10 years' then
    perform tenure.refuse('TN002', format('run_at %s is more than 10 years ahead', p_run_at), 'Name an earlier instant.');
  end if;
end $$;

create or replace function tenure.check_job(p_kind text, p_queue text, p_priority integer, p_run_at timestamptz, p_delay_ms bigint,
                                 p_max_attempts integer, p_timeout_ms bigint) returns void
language plpgsql stable as $$
declare
  c_years constant interval := '10 years';
  c_delay_ms_max constant bigint := 315576000000;   -- 10 years
  c_timeout_ms_max constant bigint := 31536000000;  -- one year
begin
  -- One expression for what is nearly always the case; what follows only says what is wrong.
  if octet_length(p_kind) between 1 and 128 and octet_length(p_queue) between 1 and 128
     and p_kind || p_queue !~ '[\u0001-\u001f\u007f-\u009f]' and p_priority between 1 and 4
     and p_max_attempts between 1 and 1000 and coalesce(p_timeout_ms between 0 and c_timeout_ms_max, true)
     and coalesce(p_delay_ms between 0 and c_delay_ms_max, true) and (p_run_at is null or p_run_at <= clock_timestamp() + c_years and p_run_at > '-infinity' and p_delay_ms is null) then
    return;
  end if;
  perform tenure.check_name('kind', p_kind);
  perform tenure.check_name('queue', p_queue);
  if p_priority is null or p_priority not between 1 and 4 then
    perform tenure.refuse('TN002', format('priority %s is outside 1 to 4', coalesce(p_priority::text, 'null')), '1 is the most urgent, 4 the least; the default is 2.');
  end if;
  if p_max_attempts is null or p_max_attempts not between 1 and 1000 then
    perform tenure.refuse('TN002', format('max_attempts %s is outside 1 to 1000', coalesce(p_max_attempts::text, 'null')), 'The default is 5.');
  end if;
  if p_timeout_ms not between 0 and c_timeout_ms_max then
    perform tenure.refuse('TN002', format('timeout %s ms is outside 0 to one year', p_timeout_ms), '0 means none; null means the one of the kind.');
  end if;
  if p_delay_ms not between 0 and c_delay_ms_max then
    perform tenure.refuse('TN002', format('delay %s ms is outside 0 to 10 years', p_delay_ms), 'A delay is not negative.');
  end if;
  perform tenure.check_run_at(p_run_at);
  if p_run_at is not null and p_delay_ms is not null then
    perform tenure.refuse('TN002', 'both run_at and a delay are given', 'Give one of them.');
  end if;
end $$;
