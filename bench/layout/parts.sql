-- pgbench: one flush of 1 to 30 jobs, after a claim when nothing is left of the last one. Variables live as long as
-- the client, so that a claim lasts over several flushes; its jobs end in random order.
\if :left = 0
select max(c.after_id) as after, array_agg(c.lease_id order by c.toss) filter (where c.job_id is not null) as leases,
       array_agg(c.job_id order by c.toss) filter (where c.job_id is not null) as jobs,
       count(c.job_id) as left, sum(length(c.payload::text)) as bytes
from (select a.lease_id, a.job_id, a.payload, a.after_id, random() as toss
      from tenure_layout.claim(:client_id + 1, 'default', '{embed}', :want, :after) as a) as c \gset
\endif
\set part least(random(1, 30), :left)
\set first :left - :part + 1
select tenure_layout.complete_part(:client_id + 1, (:leases::bigint[])[:first::integer : :left::integer],
                                   (:jobs::bigint[])[:first::integer : :left::integer]);
\set left :left - :part
