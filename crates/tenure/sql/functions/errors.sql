-- errors: what tenure itself raises. The condition is in SQLSTATE, the message names the value and the way out.
--   TN001 the lease is lost · TN002 bad input · TN003 the worker is unknown or dead, or its lease is over (a heartbeat tells) · TN004 there is no such job · TN005 not in this state
--   TN007 the queue is bounded, and full
--   TN006 nothing of tenure is in the schema: raised by no function, as there is none then; the library says it where a statement found nothing
create or replace function tenure.refuse(p_state text, p_message text, p_hint text) returns void
language plpgsql as $$
begin
  raise exception using errcode = p_state, message = p_message, hint = p_hint;
end $$;
