-- pgbench: claim, receive every payload, complete all of it. The last row of the claim is its receipt.
select lease_id, job_id, kind, attempt, payload, after_id, leases, lefts
from tenure_layout.claim(:client_id + 1, 'default', '{embed}', :want, :after) \aset
\set after :after_id
select tenure_layout.complete(:client_id + 1, :leases::bigint[], :lefts::integer[]);
