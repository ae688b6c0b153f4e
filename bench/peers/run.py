#!/usr/bin/env python3
"""Drives tenure and other queues on one server, all in the same way; README.md says what is compared.

    DATABASE_URL=postgres://… bench/peers/run.py [--quick] [--rounds N] [--peers tenure,pgmq] [--no-build]

Builds all first (setup.sh). DATABASE_URL names a superuser of a durable server; psql is on PATH or in the folder PG_BIN.
Every run has the database tenure_peers to itself, made new; it is dropped at the end.

Round 0 is short: it tries every setting of every peer once, and for each mode the one that works off the most jobs a second
is kept. The rounds from 1 on use only that one.

Prints one JSON object a line on stdout, each as soon as it is known. The first line is the server, then one for every
peer, then what was measured, in the order of the runs. Keys, by "what":

    server   version, settings (name: value)
    peer     peer, product (name and version), ended (what becomes of completed jobs: "kept", "deleted", or "rotated", which
             is kept until its part of the storage is dropped as a whole, here within seconds), settings (in words)
    enqueue  peer, round, mode, setting (in words), callers, jobs, seconds, rate (jobs per second), wal (bytes per job), busy
    work     the same without callers; seconds and rate: until the end of the last job is recorded; handled (calls of
             handlers: more than jobs when some ran twice), handled_seconds (until the last of them), ended (jobs whose end
             is recorded)
    chosen   peer, mode, setting: of round 0
    latency  peer, round, setting, jobs, p50_ms and p99_ms (from the commit of the enqueue to the start of the handler),
             call_p50_ms and call_p99_ms (from before the enqueue), busy
    failed   peer, round, run (words), error. What was measured before it in the same run stands, the rest is missing

mode is "bulk" (the peer's call for many jobs, 5,000 at a time) or "single" (a call and a commit for each job, by 32 callers).
busy is the part of the machine's CPU time that others used just before the run, null where that is unknown.

Progress and a table of medians go to stderr. Exit code 1: a run failed.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from typing import NamedTuple
from urllib.parse import urlsplit

from peers import HERE, PEERS, Peer, Setting

DATABASE = "tenure_peers"

# The same number for everybody.
JOBS = {"bulk": 200_000, "single": 50_000}
LATENCY_JOBS = 150
CALLERS = {"bulk": 1, "single": 32}
# Round 0 has a quarter of the jobs, --quick a fiftieth of all: it shows that all works, and no rate.
CHOICE_DIVISOR = 4
QUICK_DIVISOR = 50
# A call that takes longer is stuck.
DRIVER_SECONDS_MAX = 600

DURABLE = ("fsync", "full_page_writes", "synchronous_commit")
SHOWN = (*DURABLE, "shared_buffers", "max_wal_size", "checkpoint_timeout", "wal_compression", "max_connections")


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


class Run(NamedTuple):
    """What is done at a time: in a database of its own."""

    peer: Peer
    mode: str  # bulk, single, latency
    setting: Setting
    jobs: int

    def words(self):
        return f"{self.mode}, {self.setting.words()}, {self.jobs} jobs"


class Series:
    def __init__(self, server, peers, rounds, divisor):
        self.server = server
        self.peers = peers
        self.rounds = rounds
        self.divisor = divisor
        self.lines = []
        self.round = 0

    def run(self):
        for mode in JOBS:
            for run in tries(self.peers, mode, self.jobs(JOBS[mode] // CHOICE_DIVISOR)):
                self.run_one(run)
        chosen = self.choose()
        # Latency has settings of its own in every driver; what names queues is that of single enqueues.
        chosen += [run._replace(mode="latency", jobs=self.jobs(LATENCY_JOBS)) for run in chosen if run.mode == "single"]
        for self.round in range(1, self.rounds + 1):
            # Like beside like: what disturbs the machine for a minute disturbs all peers. And nobody always follows the
            # same neighbour.
            for run in chosen if self.round % 2 else reversed(chosen):
                self.run_one(run)

    def jobs(self, jobs):
        return max(jobs // self.divisor, 30)

    def choose(self):
        """The runs of a round: each peer with its best setting. One that never came to an end is left out, and has failed."""
        chosen = []
        for mode in JOBS:
            for peer in self.peers:
                if setting := best(self.lines, peer, mode):
                    chosen.append(Run(peer, mode, setting, self.jobs(JOBS[mode])))
                    self.emit("chosen", peer, mode=mode, setting=setting.words())
        return chosen

    def run_one(self, run):
        try:
            self.server.make_new()
            self.drive(run, "setup")
            self.server.psql("checkpoint")
            if run.mode == "latency":
                busy = busy_share()
                answer = self.drive(run, "latency", run.jobs)
                self.emit("latency", run.peer, setting=run.setting.words(), **answer, busy=busy)
            else:
                self.enqueue_and_work(run)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            self.emit("failed", run.peer, run=run.words(), error=str(error)[-500:])

    def enqueue_and_work(self, run):
        peer, jobs, callers = run.peer, run.jobs, CALLERS[run.mode]
        enqueued = self.measure(run, "enqueue", jobs, "--mode", run.mode, "--concurrency", callers)
        self.emit("enqueue", peer, callers=callers, **enqueued)
        stored = self.server.number(peer.stored)
        if stored != jobs:
            raise RuntimeError(f"after the enqueue {stored} of {jobs} jobs are there")
        # As autovacuum would a moment later.
        self.server.psql("analyze")
        worked = self.measure(run, "work", jobs, "--concurrency", run.setting.concurrency)
        self.emit("work", peer, **worked, ended=self.ended(peer, jobs))

    def ended(self, peer, jobs):
        """How many jobs have ended, as the tables say."""
        ended = self.server.number(peer.kept) if peer.kept else jobs - self.server.number(peer.stored)
        if ended != jobs:
            raise RuntimeError(f"after the work {ended} of {jobs} jobs have ended")
        return ended

    def measure(self, run, *arguments):
        busy = busy_share()
        wal = self.server.wal()
        answer = self.drive(run, *arguments)
        wal = (self.server.wal() - wal) / run.jobs
        known = {"mode": run.mode, "setting": run.setting.words(), "jobs": run.jobs}
        return {**known, **answer, "rate": run.jobs / answer["seconds"], "wal": wal, "busy": busy}

    def drive(self, run, *arguments):
        settings = {name: str(value) for name, value in run.setting.more.items()}
        known = {"DATABASE_URL": self.server.bench_url, "PEER_RECORDED": run.peer.recorded.format(jobs=run.jobs)}
        command = [*run.peer.command(), *map(str, arguments)]
        done = subprocess.run(
            command,
            env={**os.environ, **settings, **known},
            capture_output=True,
            text=True,
            timeout=DRIVER_SECONDS_MAX,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command[1:])}: code {done.returncode}: {done.stderr.strip()[-400:]}")
        return json.loads(done.stdout.splitlines()[-1])

    def emit(self, what, peer, **values):
        rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in values.items()}
        line = {"what": what, "peer": peer.name, "round": self.round, **rounded}
        self.lines.append(line)
        say(line)
        told = [f"{key} {line[key]}" for key in ("mode", "setting", "rate", "p50_ms", "run", "error") if key in line]
        print(f"round {self.round}, {peer.name}: {what}: {', '.join(told)}", file=sys.stderr)

    def failed(self):
        return any(line["what"] == "failed" for line in self.lines)

    def median(self, what, key="rate", **wanted):
        def fits(line):
            return line["what"] == what and line["round"] > 0 and all(line.get(name) == value for name, value in wanted.items())

        values = [line[key] for line in self.lines if fits(line)]
        return f"{statistics.median(values):,.{1 if key.endswith('_ms') else 0}f}" if values else ""

    def print_table(self):
        columns = ["peer", "completed jobs", "enqueue bulk", "work bulk", "enqueue single", "work single", "p50 ms", "p99 ms"]
        print_row(columns)
        print_row(["---"] * len(columns))
        for peer in self.peers:
            row = [peer.name, peer.ended]
            row += [self.median(what, peer=peer.name, mode=mode) for mode in JOBS for what in ("enqueue", "work")]
            row += [self.median("latency", key, peer=peer.name) for key in ("p50_ms", "p99_ms")]
            print_row(row)


def tries(peers, mode, jobs):
    """Every setting of every peer once; the first of each, then the second …: like beside like."""
    count = max(len(peer.settings) for peer in peers)
    return [Run(peer, mode, peer.settings[n], jobs) for n in range(count) for peer in peers if n < len(peer.settings)]


def best(lines, peer, mode):
    """The setting with which a peer worked off the most jobs a second; none: it never came to an end."""
    wanted = {"what": "work", "peer": peer.name, "mode": mode, "round": 0}
    tried = [line for line in lines if all(line.get(name) == value for name, value in wanted.items())]
    if not tried:
        return None
    words = max(tried, key=lambda line: line["rate"])["setting"]
    return next(setting for setting in peer.settings if setting.words() == words)


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


def at_least_one(text):
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to 100")
    return number


def read_arguments():
    parser = argparse.ArgumentParser(description="Drives tenure and other queues on one server, all in the same way.")
    parser.add_argument("--quick", action="store_true", help="a fiftieth of the jobs, and one round: shows that all works")
    parser.add_argument("--rounds", type=at_least_one, metavar="N", help="after the first short one, 1 to 100; 3 when not given")
    parser.add_argument("--peers", default="", metavar="NAME,NAME", help="only these; all: " + ",".join(p.name for p in PEERS))
    parser.add_argument("--no-build", action="store_true", help="everything is built already")
    arguments = parser.parse_args()
    names = [name for name in arguments.peers.split(",") if name]
    unknown = set(names) - {peer.name for peer in PEERS}
    if unknown:
        parser.error(f"no such peer: {', '.join(sorted(unknown))}; there are {', '.join(peer.name for peer in PEERS)}")
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
        known = {"peer": peer.name, "product": peer.product(), "ended": peer.ended}
        say({"what": "peer", **known, "settings": [setting.words() for setting in peer.settings]})
    series = Series(server, arguments.peers, arguments.rounds, QUICK_DIVISOR if arguments.quick else 1)
    try:
        series.run()
    finally:
        try:
            server.drop()
        except RuntimeError as error:
            # Whoever stopped this may have stopped the server as well.
            print(f"the database {DATABASE} is left behind: {error}", file=sys.stderr)
    series.print_table()
    sys.exit(1 if series.failed() else 0)


if __name__ == "__main__":
    main()
