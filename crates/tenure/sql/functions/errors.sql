-- errors: what tenure itself raises. The condition is in SQLSTATE, the message names the value and the way out.
--   TN001 the lease is lost · TN002 bad input · TN003 the worker is unknown or dead, or its lease is over: a heartbeat tells which · TN004 there is no such job · TN005 not in this state
create or replace function tenure.refuse(p_state text, p_message text, p_hint text) returns void
language plpgsql as $$
begin
  raise exception using errcode = p_state, message = p_message, hint = p_hint;
end $$;
