#!/usr/bin/env python3
"""Compares the ways in which rows can name their jobs; docs/design/layout.md says why and what came out.

Needs DATABASE_URL (a superuser or a member of pg_checkpoint gives steadier WAL figures), and pgbench and psql on PATH
or in the folder PG_BIN. Makes the schema tenure_layout and drops it again. Exit code 1: a run lost or repeated a job.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))

# name: file, psql variables
ARMS = {
    "arrays": ("arrays.sql", {}),
    "masks": ("masks.sql", {"walk": "set"}),
    "pieces-all": ("pieces.sql", {"walk": "all", "pieces": 32}),
    "pieces": ("pieces.sql", {"walk": "set", "pieces": 32}),
    "strip-32": ("strip.sql", {"walk": "set", "pieces": 32}),
    "strip-64": ("strip.sql", {"walk": "set", "pieces": 64}),
    "spans-64": ("spans.sql", {"pieces": 64}),
    "spans-128": ("spans.sql", {"pieces": 128}),
}
SHAPES = {"bundles": 100, "singles": 1}  # jobs that are enqueued together
COMMITS = ("off", "on")
CLIENTS = 2
ENQUEUE_CALL = 1000  # as in enqueue.sql

# name: script, jobs per claim, transactions. Short enough for many rounds, long enough to outlast a scheduler's whim.
WORKS = {
    "claim 10": ("work.sql", 10, 1000),
    "claim 100": ("work.sql", 100, 300),
    "claim 500": ("work.sql", 500, 80),
    "parts": ("parts.sql", 100, 1800),  # a transaction is a flush of 15 jobs or so
}


class Server:
    def __init__(self, url, folder):
        self.url = url
        self.folder = folder
        self.postmaster = self.find_postmaster()

    def find_postmaster(self):
        path = os.path.join(self.folder, "psql") if self.folder else "psql"
        query = "select split_part(pg_read_file('postmaster.pid'), chr(10), 1)"
        done = subprocess.run([path, "-XqAtc", query, self.url], capture_output=True, text=True)
        try:
            with open(f"/proc/{int(done.stdout)}/comm") as name:
                return int(done.stdout) if name.read().startswith("postgres") else None
        except (ValueError, OSError):
            return None

    def command(self, tool, arguments, commit="on"):
        environment = dict(os.environ)
        environment["PGOPTIONS"] = f"{environment.get('PGOPTIONS', '')} -c synchronous_commit={commit}".strip()
        path = os.path.join(self.folder, tool) if self.folder else tool
        done = subprocess.run([path, *arguments], env=environment, cwd=HERE, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{tool} {' '.join(arguments[:-1])}: {done.stderr.strip()}")
        return done.stdout

    def psql(self, *arguments):
        return self.command("psql", ["-XqAt", "-v", "ON_ERROR_STOP=1", *arguments, self.url]).strip()

    def number(self, query):
        return int(self.psql("-c", query))

    def pgbench(self, script, transactions, variables, commit):
        """Returns seconds, without those of connecting, and the sessions' CPU seconds."""
        count = transactions // CLIENTS
        arguments = ["-n", "-M", "prepared", "-c", str(CLIENTS), "-j", str(CLIENTS), "-t", str(count), "-f", script]
        for name, value in variables.items():
            arguments += ["-D", f"{name}={value}"]
        before = self.cpu_seconds()
        printed = self.command("pgbench", [*arguments, self.url], commit)
        time.sleep(0.1)  # the server has to notice that its two processes ended
        seconds = count * CLIENTS / float(re.search(r"tps = ([0-9.]+)", printed).group(1))
        return seconds, self.cpu_seconds() - before

    def cpu_seconds(self):
        """CPU time of all sessions that have ended; 0 when the server is not a process on this machine that we may ask
        about. It is what to compare on a machine that others use as well."""
        if self.postmaster is None:
            return 0
        with open(f"/proc/{self.postmaster}/stat") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")  # cutime, cstime

    def checkpoint(self):
        """So that no run pays the full-page images of another. Without the right to do it, WAL figures are rough."""
        path = os.path.join(self.folder, "psql") if self.folder else "psql"
        subprocess.run([path, "-Xq", "-c", "checkpoint", self.url], capture_output=True)


def wal_position(server):
    return server.number("select (pg_current_wal_insert_lsn() - '0/0')::bigint")


def done_jobs(server):
    return server.number("select count(*) from tenure_layout.outcome")


def buffers_per_claim(server, want):
    """Of the second claim in a session, as the first one also reads the catalogs."""
    claim = f"select a.job_id, a.payload from tenure_layout.claim(1, 'default', '{{embed}}', {want}, 0) as a"
    once = ["-c", "begin", "-c", f"explain (analyze, buffers, costs off, format json) {claim}", "-c", "rollback"]
    printed = server.psql(*once, *once)
    return int(re.findall(r'"Shared Hit Blocks": (\d+)', printed.rpartition('"Plan"')[2])[0])


def measure(server, arm, shape, commit, scale):
    """One lap of one arm: {figure: value}. Every work runs on jobs of the same enqueue, one after the other."""
    file, variables = ARMS[arm]
    settings = [text for name, value in variables.items() for text in ("-v", f"{name}={value}")]
    server.psql("-c", "set client_min_messages = warning", *settings, "-f", "common.sql", "-f", file)

    works = {name: (script, want, max(CLIENTS * 5, int(count * scale))) for name, (script, want, count) in WORKS.items()}
    # A flush takes at most 30 jobs and 15.5 on average; two claims more than the average are enough in practice.
    needed = sum(count * (17 if script == "parts.sql" else want) for script, want, count in works.values())
    calls = -(-(needed + 10_000) // (ENQUEUE_CALL * CLIENTS)) * CLIENTS
    figures = {}

    server.checkpoint()
    before = wal_position(server)
    seconds, cpu = server.pgbench("enqueue.sql", calls, {"bundle": SHAPES[shape]}, commit)
    jobs = calls * ENQUEUE_CALL
    figures["enqueue", "CPU"] = cpu * 1e6 / jobs
    figures["enqueue", "jobs/s"] = jobs / seconds
    figures["enqueue", "WAL"] = (wal_position(server) - before) / jobs

    server.psql("-c", "vacuum (analyze) tenure_layout.job, tenure_layout.ready")
    for name, (script, want, count) in works.items():
        if script == "work.sql":
            figures[name, "buffers"] = buffers_per_claim(server, want)
        server.psql("-c", "vacuum (analyze) tenure_layout.ready, tenure_layout.lease, tenure_layout.outcome")
        server.checkpoint()
        after = server.number("select coalesce(min(id), 1) - 1 from tenure_layout.ready")
        done, before = done_jobs(server), wal_position(server)
        seconds, cpu = server.pgbench(script, count, {"want": want, "after": after, "left": 0}, commit)
        wal, done = wal_position(server) - before, done_jobs(server) - done
        if script == "work.sql" and done != count // CLIENTS * CLIENTS * want:
            sys.exit(f"{arm}, {shape}, {name}: {done} jobs were completed, not {count} times {want}")
        figures[name, "jobs/s"] = done / seconds
        figures[name, "WAL"] = wal / done
        figures[name, "CPU"] = cpu * 1e6 / done

    faults = server.psql("-f", "finish.sql")
    if faults or done_jobs(server) != jobs:
        sys.exit(f"{arm}, {shape}, synchronous_commit {commit}: of {jobs} jobs {done_jobs(server)} were completed\n{faults}")
    return figures


def summary(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": len(values)}


def thousands(value):
    return f"{value / 1000:.0f}k" if value >= 10_000 else f"{value / 1000:.1f}k"


def print_tables(results, arms, shapes, commits):
    def cell(key, show):
        figure = results.get(key)
        if figure is None:
            return "-"
        return f"{show(figure['median'])} ({show(figure['min'])}..{show(figure['max'])})"

    units = {
        "jobs/s": ("jobs per second", thousands),
        "CPU": ("server CPU microseconds per job", lambda value: f"{value:.1f}"),
        "WAL": ("WAL bytes per job", lambda value: f"{value:.0f}"),
        "buffers": ("buffers hit per claim", lambda value: f"{value:.0f}"),
    }
    for measured, (unit, show) in units.items():
        for shape in shapes:
            for commit in commits:
                steps = [step for step in ("enqueue", *WORKS) if (arms[0], shape, commit, step, measured) in results]
                print(f"\n{unit}, {shape}, synchronous_commit {commit}: median (min..max)\n")
                print("| arm | " + " | ".join(steps) + " |")
                print("|---" * (len(steps) + 1) + "|")
                for arm in arms:
                    print(f"| {arm} | " + " | ".join(cell((arm, shape, commit, s, measured), show) for s in steps) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="interleaved rounds (default 3)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs: does it still work, and roughly how")
    parser.add_argument("--json", action="store_true", help="print JSON in place of tables")
    parser.add_argument("--commits", default=",".join(COMMITS), help="synchronous_commit: some of %(default)s")
    parser.add_argument("--arms", default=",".join(ARMS), help="some of: %(default)s")
    options = parser.parse_args()
    arms = options.arms.split(",")
    commits = options.commits.split(",")
    unknown = [arm for arm in arms if arm not in ARMS] + [commit for commit in commits if commit not in COMMITS]
    if unknown or options.rounds < 1 or "DATABASE_URL" not in os.environ:
        parser.error(f"no such arm or setting: {unknown}" if unknown else "--rounds must be at least 1 and DATABASE_URL must be set")

    server = Server(os.environ["DATABASE_URL"], os.environ.get("PG_BIN", ""))
    values = {}
    try:
        for turn in range(options.rounds):
            for commit in commits:
                for shape in SHAPES:
                    # Each round starts with another arm, so that none always follows the same neighbour's garbage.
                    for arm in arms[turn % len(arms):] + arms[: turn % len(arms)]:
                        print(f"round {turn + 1}: {arm}, {shape}, synchronous_commit {commit}", file=sys.stderr)
                        for (step, measured), value in measure(server, arm, shape, commit, 0.1 if options.quick else 1).items():
                            values.setdefault((arm, shape, commit, step, measured), []).append(value)
    finally:
        server.psql("-c", "set client_min_messages = warning", "-c", "drop schema if exists tenure_layout cascade")

    results = {key: summary(figures) for key, figures in values.items()}
    if options.json:
        names = ("arm", "shape", "synchronous_commit", "step", "measured")
        print(json.dumps([{**dict(zip(names, key)), **figure} for key, figure in results.items()], indent=1))
    else:
        print_tables(results, arms, list(SHAPES), commits)


if __name__ == "__main__":
    main()
