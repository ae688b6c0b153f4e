-- pgbench: 1,000 jobs in one call.
select tenure_layout.enqueue(1000, :bundle);
