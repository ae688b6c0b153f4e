"""What is compared: the products, and the settings of each.

Every product gets as many settings (SETTINGS). They are taken from its own documentation and from trials: what makes it
quick when very many jobs wait. Which one counts is found out by the short first round of run.py, for each kind of work.
"""

import json
import os
import re
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
RUST = os.path.join(HERE, "target/release/peers")
OWN_NODE = os.path.join(HERE, "node/node_modules/.bin/node")

SETTINGS = 3


@dataclass(frozen=True)
class Setting:
    concurrency: int  # handlers at a time
    more: dict = field(default_factory=dict)  # variables that the driver or the product reads

    def words(self):
        short = {"_".join(name.split("_")[1:]).lower(): value for name, value in self.more.items()}
        return ", ".join([f"concurrency {self.concurrency}", *(f"{name} {value}" for name, value in short.items())])


@dataclass(frozen=True)
class Peer:
    name: str
    program: str  # the product's name in src/main.rs, or a file in node/
    package: str
    ended: str  # what becomes of completed jobs: "kept", "deleted", or "rotated"
    settings: tuple
    stored: str  # a query: how many jobs are there, right after the enqueue
    recorded: str  # a query: is the end of all {jobs} jobs recorded? Asked again and again, so it has to be cheap
    kept: str = ""  # a query: how many completed jobs are there, right after the work

    def command(self):
        if self.program.endswith(".mjs"):
            return [OWN_NODE if os.path.exists(OWN_NODE) else "node", os.path.join(HERE, "node", self.program)]
        return [RUST, self.program]

    def product(self):
        """Name and version, as they are pinned."""
        if self.program.endswith(".mjs"):
            with open(os.path.join(HERE, "node/package.json")) as file:
                return f"{self.package} {json.load(file)['dependencies'][self.package]}"
        with open(os.path.join(HERE, "Cargo.lock")) as file:
            found = re.search(rf'^name = "{self.package}"\nversion = "([^"]+)"', file.read(), re.MULTILINE)
        return f"{self.package} {found[1]}"


def tenure(workers):
    """So many workers in one program, all else as it is by default."""
    return Setting(32, {"PEER_WORKERS": workers})


def graphile(jobs, workers=1):
    """32 at a time; 4 queues in a worker's memory, each of so many jobs; ends are written together every 5 ms."""
    return Setting(32, {"PEER_LOCAL_QUEUES": 4, "PEER_LOCAL_QUEUE_JOBS": jobs, "PEER_BATCH_MS": 5, "PEER_WORKERS": workers})


def apalis(jobs, workers=1):
    """32 at a time; so many jobs a fetch, polled every 10 ms."""
    return Setting(32, {"PEER_BATCH_JOBS": jobs, "PEER_POLL_MS": 10, "PEER_WORKERS": workers})


def pgmq(archive):
    """So many readers, of which each takes so many messages at a time."""
    readers = ((4, 1_000), (8, 500), (32, 500))
    return tuple(Setting(count, {"PEER_BATCH_JOBS": jobs, "PEER_ARCHIVE": archive}) for count, jobs in readers)


def pg_boss(concurrency, jobs):
    """So many jobs a fetch and slot."""
    return Setting(concurrency, {"PEER_BATCH_JOBS": jobs})


def awa(concurrency, partitions, jobs, **completion):
    """So many handlers at a time over all queues, and so many jobs a claim."""
    return Setting(concurrency, {"PEER_PARTITIONS": partitions, "PEER_CLAIM_JOBS": jobs, **completion})


# As its authors tune it for rate: thousands of handlers at a time, and few large writes.
AWA_LARGE_WRITES = {"AWA_COMPLETION_BATCH_SIZE": 4_096, "AWA_COMPLETION_SHARDS": 1, "AWA_COMPLETION_FLUSH_MS": 10}
# What is pruned with its part of the storage has been counted before.
AWA_ENDED = """
    (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
    + (select coalesce(sum(live_terminal_count), 0) from awa.queue_terminal_live_counts)
    + (select coalesce(sum(terminal_delta), 0) from awa.queue_terminal_count_deltas)
    + (select coalesce(sum(completed_count), 0) from awa.receipt_completion_batches)"""
PGMQ = dict(
    program="pgmq",
    package="pgmq",
    stored="select count(*) from pgmq.q_bench",
    recorded="select not exists (select from pgmq.q_bench)",
)

PEERS = [
    Peer(
        name="tenure",
        program="tenure",
        package="tenure",
        ended="kept",
        settings=(tenure(1), tenure(2), tenure(4)),
        stored="select count(*) from tenure.job",
        recorded="""select not exists (select from tenure.ready) and not exists (select from tenure.lease)
            and not exists (select from tenure.later) and not exists (select from tenure.held)""",
        kept="select count(*) from tenure.outcome where state = 'c'",
    ),
    Peer(
        name="graphile_worker",
        program="graphile_worker",
        package="graphile_worker",
        ended="deleted",
        settings=(graphile(500), graphile(1_250), graphile(500, workers=2)),
        stored="select count(*) from graphile_worker._private_jobs",
        recorded="select not exists (select from graphile_worker._private_jobs)",
    ),
    Peer(
        name="apalis",
        program="apalis",
        package="apalis-postgres",
        ended="kept",
        settings=(apalis(500), apalis(2_000), apalis(2_000, workers=2)),
        stored="select count(*) from apalis.jobs",
        recorded="select not exists (select from apalis.jobs where status <> 'Done')",
        kept="select count(*) from apalis.jobs where status = 'Done'",
    ),
    Peer(name="pgmq", ended="deleted", settings=pgmq(archive=0), **PGMQ),
    Peer(
        name="pgmq-archive",
        ended="kept",
        settings=pgmq(archive=1),
        kept="select count(*) from pgmq.a_bench",
        **PGMQ,
    ),
    Peer(
        name="pg-boss",
        program="pg-boss.mjs",
        package="pg-boss",
        ended="kept",
        settings=(pg_boss(4, 2_000), pg_boss(8, 1_000), pg_boss(32, 1_000)),
        stored="select count(*) from pgboss.job where name = 'bench'",
        recorded="select not exists (select from pgboss.job where name = 'bench' and state <> 'completed')",
        kept="select count(*) from pgboss.job where name = 'bench' and state = 'completed'",
    ),
    Peer(
        name="awa",
        program="awa",
        package="awa",
        ended="rotated",
        settings=(awa(1_024, 1, 512), awa(4_096, 1, 2_048), awa(8_192, 2, 4_096, **AWA_LARGE_WRITES)),
        stored="select count(*) from awa.jobs where state = 'available'",
        recorded=f"select {AWA_ENDED} >= {{jobs}}",
        kept=f"select {AWA_ENDED}",
    ),
]
