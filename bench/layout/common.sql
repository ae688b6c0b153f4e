-- What every arm has in common. The driver loads this file first, then the file of one arm. It vacuums between the
-- runs and not during them: autovacuum is off, as its WAL would be counted with whichever run it met.

drop schema if exists tenure_layout cascade;
create schema tenure_layout;
set search_path = tenure_layout;

create table worker (
  id integer primary key,
  lease_until timestamptz not null
);
insert into worker (id, lease_until) values (1, 'infinity'), (2, 'infinity');

-- Jobs are numbered by the arm: one by one, or as block * 128 + n.
create table job (
  id bigint primary key,
  queue text not null,
  kind text not null,
  payload jsonb not null,
  priority smallint not null default 2,
  max_attempts smallint not null default 5,
  created_at timestamptz not null default now()
) with (autovacuum_enabled = off);

-- The primary key is also the check: a job that is completed twice stops the run.
create table outcome (
  job_id bigint primary key,
  state "char" not null,
  attempt smallint not null,
  worker_id integer not null,
  lease_id bigint not null,
  started_at timestamptz not null,
  finished_at timestamptz not null default clock_timestamp(),
  result jsonb
) with (autovacuum_enabled = off);
