-- Who declares a schedule, and times ahead, for who fires schedules without the rules of time zones.
-- Locks: access exclusive on schedule, for a moment. Time: milliseconds, whatever the number of schedules.

-- Whose declarations it is among; null: it was added by hand. Only a sync by this owner changes or removes it.
alter table tenure.schedule add column declared_by text
  constraint schedule_is_declared_by_1_to_128_bytes check (octet_length(declared_by) between 1 and 128);

-- The next times of a schedule, as a program has computed them. Where nobody calls tick() by pg_cron there are few rows or none.
create table tenure.schedule_ahead (
  schedule_id bigint primary key,
  version     bigint not null,             -- they hold for this version of the schedule
  times       timestamptz[] not null,      -- in order
  complete    boolean not null,            -- there are no further ones
  computed_at timestamptz not null,        -- by the rules of time zones of that day
  constraint schedule_ahead_has_at_most_512_times check (cardinality(times) <= 512)
);

-- cron: when pg_cron called last. cron all: when it has to look at what was due long ago.
insert into tenure.duty (name, next_at) values ('cron', '-infinity'), ('cron all', '-infinity');
