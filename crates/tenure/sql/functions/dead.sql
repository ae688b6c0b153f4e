-- fingerprint: the same for two failures with one cause whose messages differ only in what differs from job to job. Twelve hexadecimal digits.
create or replace function tenure.fingerprint(p_cause text, p_message text) returns text
language sql immutable as $$ select left(md5(p_cause || E'\n' || tenure.outline(p_message)), 12) $$;

-- outline: the start of a message with quoted texts, ids, hexadecimal and other numbers replaced by their names. A quote inside a word is none.
create or replace function tenure.outline(p_message text) returns text
language plpgsql immutable as $$
declare
  c_chars constant integer := 1000;  -- what comes behind, a stack or the end of stderr, differs without saying more
  v_text text := left(p_message, c_chars);
begin
  v_text := regexp_replace(v_text, '"[^"]*"|`[^`]*`|(?<!\w)''[^'']*''(?!\w)', '<text>', 'g');
  v_text := regexp_replace(v_text, '\m[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\M', '<id>', 'gi');
  v_text := regexp_replace(v_text, '\m(?:0x[0-9a-f]+|(?=[0-9a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{8,})\M', '<hex>', 'gi');
  v_text := regexp_replace(v_text, '[0-9]+(?:[.,:][0-9]+)*', '<n>', 'g');
  return btrim(regexp_replace(v_text, '\s+', ' ', 'g'));
end $$;

-- line_of: the jobs that were made from one another by requeue, this one among them, oldest first. A job that is gone (discarded, or removed by
-- retention) stands in its line without a status as long as another names it. At most 1000. Locks: none.
create or replace function tenure.line_of(p_job bigint) returns table (job_id bigint, status text, cause text, created_at timestamptz, ended_at timestamptz)
language plpgsql stable security definer set search_path = pg_catalog, tenure, pg_temp as $$
#variable_conflict use_column
declare
  c_jobs_max constant integer := 1000;
  v_before bigint[] := '{}';  -- oldest first
  v_job bigint := p_job;
begin
  for i in 1 .. c_jobs_max loop
    select coalesce((select d.replaces_id from tenure.dead_letter d where d.job_id = v_job),
                    (select j.replaces_id from tenure.job j where j.id = v_job)) into v_job;
    exit when v_job is null;
    v_before := v_job || v_before;
  end loop;
  return query
    with recursive after as (
      select p_job as id, cardinality(v_before) + 1 as place
      union all
      select x.new_id, a.place + 1 from after a join tenure.replacement x on x.job_id = a.id where a.place < c_jobs_max),
    line as (
      select u.id, u.place::integer from unnest(v_before) with ordinality as u(id, place)
      union all
      select a.id, a.place from after a)
    select l.id, v.status, d.cause, v.created_at, coalesce(v.finished_at, d.died_at)
    from line l
    left join lateral (select s.status, s.created_at, s.finished_at from tenure.jobs s where s.id = l.id offset 0) v on true
    left join tenure.dead_letter d on d.job_id = l.id
    order by l.place;
end $$;
