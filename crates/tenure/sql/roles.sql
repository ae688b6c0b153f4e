-- The roles: optional, and made by `tenure migrate --roles`. A role needs EXECUTE on its verbs only; INSERT is granted on inbox alone.
-- Roles belong to the whole cluster; they are named for the schema, so that two of them do not share any.
do $$
declare
  v_role text;
begin
  foreach v_role in array array['tenure_producer', 'tenure_worker', 'tenure_viewer', 'tenure_admin'] loop
    if not exists (select from pg_catalog.pg_roles r where r.rolname = v_role) then
      execute pg_catalog.format('create role %I nologin', v_role);
    end if;
  end loop;
end $$;

grant usage on schema tenure to tenure_producer, tenure_worker, tenure_viewer, tenure_admin;

-- Verbs that take JSON have three forms, so that their parameters name them.
grant execute on function tenure.enqueue(text, json, text, integer, timestamptz, bigint, integer, bigint), tenure.enqueue(text, jsonb, text, integer, timestamptz, bigint, integer, bigint), tenure.enqueue(text, text, text, integer, timestamptz, bigint, integer, bigint),
  tenure.enqueue_many, tenure.enqueue_bundles, tenure.enqueue_inbox, tenure.enqueue_limited, tenure.enqueue_many_limited to tenure_producer, tenure_worker, tenure_admin;
-- Not txid: rows belong to the transaction that writes them.
grant insert (kind, payload, queue, priority, run_at, max_attempts, timeout_ms, limits) on tenure.inbox to tenure_producer, tenure_worker, tenure_admin;

grant execute on function tenure.register_worker, tenure.attach_worker, tenure.heartbeat, tenure.leave_worker, tenure.claim, tenure.sleep, tenure.wake,
  tenure.complete_many, tenure.fail, tenure.release, tenure.ended_by, tenure.leases_of, tenure.note_overruns, tenure.refuse_kinds, tenure.tick(bigint, boolean), tenure.net, tenure.retain,
  tenure.record_stats, tenure.fold_stats, tenure.throttle_job,
  tenure.complete(bigint, bigint, json), tenure.complete(bigint, bigint, jsonb), tenure.complete(bigint, bigint, text),
  tenure.progress(bigint, bigint, json), tenure.progress(bigint, bigint, jsonb), tenure.progress(bigint, bigint, text) to tenure_worker;

grant execute on function tenure.jobs_in, tenure.leases, tenure.end_of, tenure.idempotency_key_of, tenure.queue_stats, tenure.sightings, tenure.keeps, tenure.settings, tenure.unhandled_kinds, tenure.pick_jobs, tenure.count_jobs, tenure.waits_for, tenure.line_of, tenure.outline,
  tenure.stats, tenure.worker_stats, tenure.uncounted_since, tenure.percentile_ms, tenure.limits, tenure.queue_bounds to tenure_viewer, tenure_worker, tenure_producer, tenure_admin;
grant select on tenure.jobs to tenure_viewer, tenure_worker, tenure_producer, tenure_admin;
grant select on tenure.dead_letter, tenure.attempt_error, tenure.queue, tenure.kind_pause, tenure.worker_list, tenure.replacement, tenure.migration to tenure_viewer, tenure_admin, tenure_worker;

grant execute on function tenure.cancel, tenure.cancel_many, tenure.discard, tenure.pause, tenure.resume, tenure.pause_kind, tenure.resume_kind, tenure.settle_pause,
  tenure.drain_worker, tenure.rescue, tenure.promote, tenure.tick(bigint, boolean), tenure.net, tenure.set_keep, tenure.set_setting, tenure.retain, tenure.walk_anew, tenure.retain_preview, tenure.fold_stats, tenure.set_limit, tenure.remove_limit, tenure.set_queue_bound, tenure.remove_queue_bound,
  tenure.requeue(bigint, json, timestamptz), tenure.requeue(bigint, jsonb, timestamptz), tenure.requeue(bigint, text, timestamptz) to tenure_admin;
grant execute on function tenure.retain_preview to tenure_viewer;
-- Whoever meets a limit's provider may say that it is too much.
grant execute on function tenure.throttle to tenure_producer, tenure_worker, tenure_admin;
-- It names roles and programs of other sessions: for those who operate.
grant execute on function tenure.vacuum_horizon to tenure_viewer, tenure_worker, tenure_admin;
grant execute on function tenure.cancel, tenure.cancel_settled, tenure.reschedule, tenure.run_now to tenure_producer, tenure_worker, tenure_admin;

grant execute on function tenure.due_schedules, tenure.fire to tenure_worker;
grant execute on function tenure.add_schedule, tenure.edit_schedule, tenure.pause_schedule, tenure.resume_schedule, tenure.remove_schedule, tenure.run_schedule, tenure.add_backfill, tenure.cancel_backfill to tenure_admin;
grant execute on function tenure.ran_of, tenure.troubled_schedules to tenure_viewer, tenure_worker, tenure_producer, tenure_admin;
grant select on tenure.schedules, tenure.schedule_runs, tenure.backfills to tenure_viewer, tenure_worker, tenure_producer, tenure_admin;
grant execute on function tenure.tick(), tenure.times_wanted, tenure.set_times_ahead to tenure_worker, tenure_admin;
grant execute on function tenure.sync_schedules, tenure.add_schedules, tenure.cron_jobs, tenure.move_cron_jobs to tenure_admin;
grant execute on function tenure.cron_state, tenure.cron_server to tenure_viewer, tenure_admin;
