#!/usr/bin/env python3
"""What statistics cost the database: CPU of the server's process for each enqueued job that is counted, for each report of a worker, and for each row folded.

usage: run.py postgres://… [jobs]
The database is on this machine, has just been migrated (`tenure migrate`), holds no jobs, and no worker runs. Prints a line for each.
Docs: docs/design/statistics.md.
"""
import json
import os
import subprocess
import sys


class Session:
    """One psql, so one process of the server."""

    def __init__(self, url):
        self.psql = subprocess.Popen(["psql", url, "-qAtX", "-v", "ON_ERROR_STOP=1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self.run("select pg_backend_pid()")[0]

    def run(self, sql):
        self.psql.stdin.write(sql + ";\nselect 'end of the answer';\n")
        self.psql.stdin.flush()
        lines = []
        for line in self.psql.stdout:
            if line == "end of the answer\n":
                return lines
            lines.append(line.rstrip("\n"))
        sys.exit(f"failed: {sql[:200]}")

    def cpu(self):
        """User and system seconds so far."""
        with open(f"/proc/{self.pid}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def fold(self):
        """Turns until nothing is left; jobs counted, rows folded."""
        counted = folded = 0
        while True:
            turn = json.loads(self.run("select tenure.fold_stats()")[0])
            counted, folded = counted + turn["counted"], folded + turn["folded"]
            if not turn["more"]:
                return counted, folded


def line(name, what, seconds, count):
    print(f"{name}: {1e6 * seconds / count:.2f} us of CPU {what}", flush=True)


def count_jobs(session, name, jobs, enqueue):
    before = session.cpu()
    session.run(enqueue)
    enqueued = session.cpu() - before
    first = int(session.run("select place from tenure.duty where name = 'enqueued'")[0])
    session.fold()
    # Once more: whoever reads a row first also notes that its transaction has committed, which is mostly the claim.
    session.run(f"update tenure.duty set place = {first} where name = 'enqueued'")
    before = session.cpu()
    counted, _ = session.fold()
    assert counted == jobs, (counted, jobs)
    line(name, "an enqueued job", enqueued, jobs)
    line(name, "to count it", session.cpu() - before, jobs)


def main():
    session, jobs = Session(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1_000_000
    payload = """'{"doc": 12345, "model": "v1"}'"""
    bundle = f"select count(*) from (select tenure.enqueue_many('act', array_fill({payload}::json, array[%d])) from generate_series(1, %d)) x"
    count_jobs(session, "alone", jobs // 10, f"select count(tenure.enqueue('act', {payload})) from generate_series(1, {jobs // 10})")
    count_jobs(session, "bundles of 10", jobs, bundle % (10, jobs // 10))
    count_jobs(session, "bundles of 100", jobs, bundle % (100, jobs // 100))
    histogram = {"wait_buckets": list(range(10, 25)), "wait_counts": [7] * 15, "run_buckets": list(range(20, 35)), "run_counts": [7] * 15}
    groups = json.dumps([{"queue": "q", "kind": f"kind {n}", "started": 105, "completed": 105, **histogram} for n in range(10)])
    own = json.dumps({"claim_buckets": list(range(10, 25)), "claim_counts": [7] * 15, "flush_buckets": list(range(10, 25)), "flush_counts": [7] * 15})
    before = session.cpu()
    for seq in range(1, 501):
        session.run(f"select tenure.record_stats(1, {seq}, clock_timestamp(), '{groups}', '{own}')")
    line("ten kinds", "a report", session.cpu() - before, 500)
    before = session.cpu()
    _, folded = session.fold()
    line("ten kinds", "a folded row", session.cpu() - before, folded)
    before = session.cpu()
    for _ in range(500):
        session.run("select tenure.fold_stats()")
    line("nothing to do", "a turn", session.cpu() - before, 500)
    before = session.cpu()
    session.run("select count(*) from generate_series(1, 10000000)")
    line("for comparison", "a row of generate_series", session.cpu() - before, 10_000_000)


if __name__ == "__main__":
    main()
