#!/usr/bin/env python3
"""Drives tenure and other queues on one server, all in the same way; README.md says what is compared.

    DATABASE_URL=postgres://… bench/peers/run.py [--quick] [--rounds N] [--peers tenure,pgmq] [--no-build]

Builds all first (setup.sh). DATABASE_URL names a superuser of a durable server; psql is on PATH or in the folder PG_BIN.
Every run has the database tenure_peers to itself, made new; it is dropped at the end.

Prints one JSON object a line on stdout, each as soon as it is known. The first line is the server, then one for every
peer, then what was measured, in the order of the runs. Keys, by "what":

    server   version, settings (name: value)
    peer     peer, product (name and version), ended (what becomes of completed jobs: "kept", "deleted", or "rotated", which
             is kept until its part of the storage is dropped as a whole, here within seconds), settings
    enqueue  peer, round (from 1), mode, concurrency (callers), jobs, seconds, rate (jobs per second),
             wal (bytes per job), busy
    work     the same; mode: how the jobs had been enqueued; concurrency: handlers at a time; and handled (calls of
             handlers: more than jobs when some ran twice)
    latency  peer, round, jobs, p50_ms and p99_ms (from the commit of the enqueue to the start of the handler), call_p50_ms
             and call_p99_ms (from before the enqueue), busy
    failed   peer, round, run (words), error. What was measured before it in the same run stands, the rest is missing

mode is "bulk" (the peer's call for many jobs, 5,000 at a time), "copy" (COPY, of tenure only: awa's call for many is one),
or "single" (a call and a commit for each job, by 32 callers). busy is the part of the machine's CPU time that others used
just before the run, null where that is unknown.

Progress and a table of medians go to stderr. Exit code 1: a run failed.
"""

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

HERE = os.path.dirname(os.path.abspath(__file__))
DATABASE = "tenure_peers"
RUST = os.path.join(HERE, "target/release/peers")
OWN_NODE = os.path.join(HERE, "node/node_modules/.bin/node")

SINGLE_CALLERS = 32
LATENCY_JOBS = 150
QUICK_DIVISOR = 10
# A call that takes longer is stuck.
DRIVER_SECONDS_MAX = 600

DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
SHOWN = (*DURABLE, "shared_buffers", "max_wal_size", "checkpoint_timeout", "wal_compression", "max_connections")


@dataclass
class Peer:
    name: str
    program: str  # the product's name in src/main.rs, or a file in node/
    package: str
    ended: str
    jobs: dict  # concurrency: jobs of a run, so many that it takes some seconds
    best: int  # the concurrency at which jobs that were enqueued singly are worked off
    unfinished: str  # a query that gives 0 after the work
    kept: str = ""  # and one that gives the number of jobs, where they are kept
    # Fewer than in bulk: the commits of those that notify in each go one after another.
    singles: int = 20_000
    modes: tuple = ("bulk",)
    settings: dict = field(default_factory=dict)

    def command(self):
        if self.program.endswith(".mjs"):
            return [OWN_NODE if os.path.exists(OWN_NODE) else "node", os.path.join(HERE, "node", self.program)]
        return [RUST, self.program]

    def runs(self):
        for mode in self.modes:
            for concurrency, jobs in self.jobs.items():
                if mode == "bulk" or concurrency == self.best:
                    yield mode, concurrency, jobs
        if self.singles:
            yield "single", self.best, self.singles
        yield "latency", 1, LATENCY_JOBS


PGMQ = dict(program="pgmq", package="pgmq", unfinished="select count(*) from pgmq.q_bench")
AWA = dict(
    program="awa",
    package="awa",
    ended="rotated",
    unfinished="select count(*) from awa.jobs where state <> 'completed'",
)
# The settings of each are those with which it was quickest; tenure has none.
PEERS = [
    Peer(
        name="tenure",
        program="tenure",
        package="tenure",
        ended="kept",
        jobs={1: 200_000, 8: 200_000, 32: 200_000, 128: 200_000},
        best=32,
        singles=50_000,
        modes=("bulk", "copy"),
        unfinished="select count(*) from tenure.jobs where status <> 'completed'",
        kept="select count(*) from tenure.outcome where state = 'c'",
    ),
    Peer(
        name="graphile_worker",
        program="graphile_worker",
        package="graphile_worker",
        ended="deleted",
        jobs={1: 100_000, 8: 150_000, 32: 150_000},
        best=32,
        unfinished="select count(*) from graphile_worker._private_jobs",
        settings={"PEER_LOCAL_QUEUES": 4, "PEER_LOCAL_QUEUE_JOBS": 500, "PEER_BATCH_MS": 5},
    ),
    Peer(
        name="apalis",
        program="apalis",
        package="apalis-postgres",
        ended="kept",
        jobs={1: 50_000, 8: 60_000, 32: 60_000},
        best=32,
        unfinished="select count(*) from apalis.jobs where status <> 'Done'",
        kept="select count(*) from apalis.jobs where status = 'Done'",
        settings={"PEER_BATCH_JOBS": 2_000, "PEER_POLL_MS": 10},
    ),
    Peer(
        name="pgmq",
        ended="deleted",
        jobs={1: 200_000, 8: 200_000, 32: 200_000},
        best=8,
        singles=50_000,
        settings={"PEER_BATCH_JOBS": 500, "PEER_ARCHIVE": 0},
        **PGMQ,
    ),
    Peer(
        name="pgmq-archive",
        ended="kept",
        jobs={8: 150_000},
        best=8,
        singles=0,
        kept="select count(*) from pgmq.a_bench",
        settings={"PEER_BATCH_JOBS": 500, "PEER_ARCHIVE": 1},
        **PGMQ,
    ),
    Peer(
        name="pg-boss",
        program="pg-boss.mjs",
        package="pg-boss",
        ended="kept",
        jobs={1: 80_000, 8: 100_000, 32: 100_000},
        best=8,
        unfinished="select count(*) from pgboss.job where state <> 'completed'",
        kept="select count(*) from pgboss.job where state = 'completed'",
        settings={"PEER_BATCH_JOBS": 1_000},
    ),
    Peer(
        name="awa",
        jobs={1: 300, 8: 3_000, 32: 12_000, 1_024: 60_000},
        best=1_024,
        settings={"PEER_PARTITIONS": 1, "PEER_CLAIM_JOBS": 512},
        **AWA,
    ),
    # As its authors tune it for rate: thousands of handlers at a time.
    Peer(
        name="awa-8192",
        jobs={8_192: 100_000},
        best=8_192,
        singles=0,
        settings={
            "PEER_PARTITIONS": 2,
            "PEER_CLAIM_JOBS": 4_096,
            "AWA_COMPLETION_BATCH_SIZE": 4_096,
            "AWA_COMPLETION_SHARDS": 1,
            "AWA_COMPLETION_FLUSH_MS": 10,
        },
        **AWA,
    ),
]
MODES = ["bulk", "copy", "single", "latency"]


class Server:
    def __init__(self, url):
        self.url = url
        self.bench_url = urlsplit(url)._replace(path=f"/{DATABASE}").geturl()

    def psql(self, query, url=None):
        folder = os.environ.get("PG_BIN")
        path = os.path.join(folder, "psql") if folder else "psql"
        command = [path, "-XqAt", "-v", "ON_ERROR_STOP=1", "-c", query, url or self.bench_url]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            sys.exit("psql is missing: install PostgreSQL's client, or name the folder of its programs in PG_BIN")
        if done.returncode != 0:
            raise RuntimeError(f"{query}: {done.stderr.strip()}")
        return done.stdout.strip()

    def number(self, query):
        return int(self.psql(query))

    def wal(self):
        return self.number("select pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::bigint")

    def settings(self):
        return {name: self.psql(f"show {name}", self.url) for name in SHOWN}

    def drop(self):
        self.psql(f"drop database if exists {DATABASE} with (force)", self.url)

    def make_new(self):
        self.drop()
        self.psql(f"create database {DATABASE}", self.url)


class Series:
    def __init__(self, server, peers, rounds, divisor):
        self.server = server
        self.peers = peers
        self.rounds = rounds
        self.divisor = divisor
        self.lines = []
        self.mark = {}  # the peer and round of the run that goes on

    def run(self):
        for number in range(1, self.rounds + 1):
            runs = [(peer, *run) for peer in self.peers for run in peer.runs()]
            # Like beside like: what disturbs the machine for a minute disturbs all peers.
            runs.sort(key=lambda run: (MODES.index(run[1]), run[2]))
            # And nobody always follows the same neighbour.
            for peer, mode, concurrency, jobs in runs if number % 2 else reversed(runs):
                self.run_one(number, peer, mode, concurrency, max(jobs // self.divisor, 30))

    def run_one(self, number, peer, mode, concurrency, jobs):
        self.mark = {"peer": peer.name, "round": number}
        try:
            self.server.make_new()
            self.drive(peer, "setup")
            self.server.psql("checkpoint")
            if mode == "latency":
                busy = busy_share()
                self.emit("latency", **self.drive(peer, "latency", jobs), busy=busy)
            else:
                self.enqueue_and_work(peer, mode, concurrency, jobs)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            words = f"{mode}, concurrency {concurrency}, {jobs} jobs"
            self.emit("failed", run=words, error=str(error)[-500:])

    def enqueue_and_work(self, peer, mode, concurrency, jobs):
        callers = SINGLE_CALLERS if mode == "single" else 1
        enqueue = ["enqueue", jobs, "--mode", mode, "--concurrency", callers]
        self.measure("enqueue", peer, enqueue, mode=mode, concurrency=callers, jobs=jobs)
        # As autovacuum would a moment later.
        self.server.psql("analyze")
        work = ["work", jobs, "--concurrency", concurrency]
        self.measure("work", peer, work, mode=mode, concurrency=concurrency, jobs=jobs)
        unfinished = self.server.number(peer.unfinished)
        if unfinished != 0:
            raise RuntimeError(f"after the work {unfinished} jobs are unfinished")
        if peer.kept and (kept := self.server.number(peer.kept)) != jobs:
            raise RuntimeError(f"after the work {kept} of {jobs} jobs are kept")

    def measure(self, what, peer, arguments, jobs, **known):
        busy = busy_share()
        wal = self.server.wal()
        answer = self.drive(peer, *arguments)
        wal = (self.server.wal() - wal) / jobs
        rate = jobs / answer["seconds"]
        self.emit(what, **known, jobs=jobs, **answer, rate=rate, wal=wal, busy=busy)

    def drive(self, peer, *arguments):
        settings = {name: str(value) for name, value in peer.settings.items()}
        environment = {**os.environ, "DATABASE_URL": self.server.bench_url, **settings}
        command = [*peer.command(), *map(str, arguments)]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=DRIVER_SECONDS_MAX, stdin=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[1:])}: code {done.returncode}: {done.stderr.strip()[-400:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def emit(self, what, **values):
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}
        line = {"what": what, **self.mark, **rounded}
        self.lines.append(line)
        say(line)
        told = [f"{key} {line[key]}" for key in ("mode", "concurrency", "rate", "p50_ms", "error") if key in line]
        print(f"round {line['round']}, {line['peer']}: {what}: {', '.join(told)}", file=sys.stderr)

    def failed(self):
        return any(line["what"] == "failed" for line in self.lines)

    def median(self, what, key="rate", **wanted):
        def fits(line):
            return line["what"] == what and all(line.get(name) == value for name, value in wanted.items())

        values = [line[key] for line in self.lines if fits(line)]
        return f"{statistics.median(values):,.{1 if key.endswith('_ms') else 0}f}" if values else ""

    def print_table(self):
        levels = sorted({concurrency for peer in self.peers for concurrency in peer.jobs})
        columns = ["peer", "completed jobs", "enqueue bulk", "copy", "single"]
        columns += [f"work {level:,}" for level in levels] + ["enqueued singly", "p50 ms", "p99 ms"]
        print_row(columns)
        print_row(["---"] * len(columns))
        for peer in self.peers:
            row = [peer.name, peer.ended]
            row += [self.median("enqueue", peer=peer.name, mode=mode) for mode in ("bulk", "copy", "single")]
            row += [self.median("work", peer=peer.name, mode="bulk", concurrency=level) for level in levels]
            row += [self.median("work", peer=peer.name, mode="single")]
            row += [self.median("latency", key, peer=peer.name) for key in ("p50_ms", "p99_ms")]
            print_row(row)


def print_row(cells):
    print(f"| {' | '.join(cells)} |", file=sys.stderr)


def say(line):
    print(json.dumps(line), flush=True)


def busy_share():
    """The part of the CPU time that is in use now, while nothing of ours runs."""

    def read():
        with open("/proc/stat") as stat:
            times = [int(word) for word in stat.readline().split()[1:9]]
        return sum(times), times[3] + times[4]

    try:
        (total, idle) = read()
        time.sleep(0.3)
        (total_later, idle_later) = read()
    except OSError:
        return None
    return round(1 - (idle_later - idle) / max(1, total_later - total), 2)


def product(peer):
    """Name and version, as they are pinned."""
    if peer.program.endswith(".mjs"):
        with open(os.path.join(HERE, "node/package.json")) as file:
            version = json.load(file)["dependencies"][peer.package]
    else:
        with open(os.path.join(HERE, "Cargo.lock")) as file:
            found = re.search(rf'^name = "{peer.package}"\nversion = "([^"]+)"', file.read(), re.MULTILINE)
        version = found[1]
    return f"{peer.package} {version}"


def read_arguments():
    parser = argparse.ArgumentParser(description="Drives tenure and other queues on one server, all in the same way.")
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs, and one round")
    parser.add_argument("--rounds", type=int, help="3 when not given")
    parser.add_argument("--peers", default="", metavar="NAME,NAME", help="only these; all: " + ",".join(p.name for p in PEERS))
    parser.add_argument("--no-build", action="store_true", help="everything is built already")
    arguments = parser.parse_args()
    names = [name for name in arguments.peers.split(",") if name]
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}")
    arguments.peers = [peer for peer in PEERS if not names or peer.name in names]
    arguments.rounds = arguments.rounds or (1 if arguments.quick else 3)
    if not os.environ.get("DATABASE_URL"):
        parser.error("set DATABASE_URL")
    return arguments


def main():
    # So that a driver that runs is ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments = read_arguments()
    server = Server(os.environ["DATABASE_URL"])
    settings = server.settings()
    weak = [name for name in DURABLE if settings[name] != "on"]
    if weak:
        sys.exit(f"the server is not durable: {', '.join(weak)} must be on, for rates without it mean nothing")
    if not arguments.no_build:
        subprocess.run([os.path.join(HERE, "setup.sh")], check=True, stdout=sys.stderr)
    say({"what": "server", "version": server.psql("show server_version", server.url), "settings": settings})
    for peer in arguments.peers:
        known = {"peer": peer.name, "product": product(peer), "ended": peer.ended, "settings": peer.settings}
        say({"what": "peer", **known})
    series = Series(server, arguments.peers, arguments.rounds, QUICK_DIVISOR if arguments.quick else 1)
    try:
        series.run()
    finally:
        server.drop()
    series.print_table()
    sys.exit(1 if series.failed() else 0)


if __name__ == "__main__":
    main()
