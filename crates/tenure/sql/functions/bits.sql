-- bits: how rows name their jobs. Pure; every other function builds on these.

-- Bit strings are joined in the order of the aggregate: masks become the strip of a lease.
create or replace aggregate tenure.join_bits(bit varying) (sfunc = bitcat, stype = bit varying, initcond = '');

-- The jobs that a strip names, with their slots. A mask is a strip of one piece. It walks a piece from its first set bit, and no further than
-- its jobs where they stand side by side, as they do unless some have ended before others: a bundle of ten costs ten steps and not 128.
-- Without "security definer" and "set", so that the planner puts its text in place of the call.
create or replace function tenure.jobs_in(p_blocks bigint[], p_strip bit varying) returns table (job_id bigint, slot integer)
language sql immutable as $$
  select b.block * 128 + n.n, (b.o::integer - 1) * 128 + n.n
  from unnest(p_blocks) with ordinality as b(block, o)
  cross join lateral (select substring(p_strip from (b.o::integer - 1) * 128 + 1 for 128) as mask) m
  cross join lateral (select position(B'1' in m.mask) - 1 as first, bit_count(m.mask)::integer as bits) f
  cross join lateral (select generate_series(f.first, case when bit_count(substring(m.mask from f.first + 1 for f.bits)) = f.bits then f.first + f.bits - 1 else 127 end) as n) n
  where get_bit(m.mask, n.n) = 1
$$;

-- The mask of one job within its block.
create or replace function tenure.mask_of(p_job bigint) returns bit(128)
language sql immutable as $$ select set_bit(0::bit(128), (p_job & 127)::integer, 1) $$;

-- The mask of the first p_count bits that are set in p_mask: its shortest prefix with so many. It ends at the first try for jobs side by
-- side; otherwise it must be longer by at least as many bits as are missing.
create or replace function tenure.mask_first(p_mask bit(128), p_count integer) returns bit(128)
language plpgsql immutable as $$
declare
  v_length integer := position(b'1' in p_mask) - 1 + p_count;
  v_prefix bit(128);
  v_missing integer;
begin
  loop
    v_prefix := p_mask & ~ ((~ 0::bit(128)) >> v_length);
    v_missing := p_count - bit_count(v_prefix);
    exit when v_missing <= 0 or v_length >= 128;
    v_length := v_length + v_missing;
  end loop;
  return v_prefix;
end $$;

-- The mask of a fresh bundle of p_count jobs.
create or replace function tenure.mask_fresh(p_count integer) returns bit(128)
language sql immutable as $$ select (~ 0::bit(128)) << (128 - p_count) $$;

-- The class of tenure's two-integer advisory locks; the key is a worker's id, or 0 for maintenance, -1 for retention, -2 for rows left in inbox,
-- -3 for statistics, -4 for pg_cron, -5 for a sync of schedules, -6 for the book of limits.
create or replace function tenure.lock_class() returns integer
language sql stable as $$ select ('x' || lpad(to_hex('tenure'::regnamespace::oid::bigint), 8, '0'))::bit(32)::integer $$;

create or replace function tenure.lock_key(p_worker bigint) returns integer
language sql immutable as $$ select (p_worker & 2147483647)::integer $$;

-- The pieces of a lease as ranges of job ids: as narrow as one pass over the job table by range needs them.
-- slot is the slot of the first job of the block, in range or not.
create or replace function tenure.pieces_of(p_blocks bigint[], p_strip bit varying) returns table (slot integer, first_job bigint, last_job bigint)
language sql immutable as $$
  select (b.o::integer - 1) * 128, b.block * 128 + f.first,
         b.block * 128 + case when bit_count(substring(m.mask from f.first + 1 for f.bits)) = f.bits then f.first + f.bits - 1 else 127 end
  from unnest(p_blocks) with ordinality as b(block, o)
  cross join lateral (select substring(p_strip from (b.o::integer - 1) * 128 + 1 for 128) as mask) m
  cross join lateral (select position(B'1' in m.mask) - 1 as first, bit_count(m.mask)::integer as bits) f
  where f.bits > 0
$$;
