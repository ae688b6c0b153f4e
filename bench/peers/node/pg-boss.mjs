// pg-boss, called as the program for the Rust products is: setup, enqueue N, work N, latency N (src/contract.rs).
// It keeps completed jobs. A full worker fetches PEER_BATCH_JOBS at a time per slot.
import { PgBoss } from 'pg-boss';

const QUEUE = 'bench';
const BULK_JOBS = 5_000;
const SETTLED_MS = 1_500;
const WARM_JOBS = 5;
const LATENCY_MAX_MS = 45_000;
const LOOK_MS = 2;
const STUCK_MS = 60_000;
const STOP_MS = 10_000;
const CONNECTIONS_MIN = 10;

const now = () => Number(process.hrtime.bigint()) / 1e6;
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const percentile = (values, percent) => values.sort((a, b) => a - b)[Math.max(1, Math.ceil((values.length * percent) / 100)) - 1];

function readCall() {
  const [verb, jobs, ...options] = process.argv.slice(2);
  const option = (name, otherwise) => (options.includes(name) ? options[options.indexOf(name) + 1] : otherwise);
  return {
    verb,
    jobs: Number(jobs),
    mode: option('--mode', 'bulk'),
    concurrency: Number(option('--concurrency', verb === 'work' ? 8 : 1)),
  };
}

async function enqueueBulk(boss, jobs) {
  for (let first = 0; first < jobs; first += BULK_JOBS) {
    const length = Math.min(BULK_JOBS, jobs - first);
    await boss.insert(QUEUE, Array.from({ length }, (_, k) => ({ data: { i: first + k } })));
  }
}

async function enqueueSingly(boss, jobs, callers) {
  let next = 0;
  const caller = async () => {
    while (next < jobs) await boss.send(QUEUE, { i: next++ });
  };
  await Promise.all(Array.from({ length: callers }, caller));
}

async function enqueue(boss, { jobs, mode, concurrency }) {
  const began = now();
  if (mode === 'bulk') await enqueueBulk(boss, jobs);
  else if (mode === 'single') await enqueueSingly(boss, jobs, concurrency);
  else throw new Error(`${mode} is no way of pg-boss`);
  return { seconds: (now() - began) / 1e3 };
}

async function work(boss, { jobs, concurrency }) {
  let handled = 0;
  let last;
  const began = now();
  const batchSize = Number(process.env.PEER_BATCH_JOBS);
  const options = { batchSize, localConcurrency: concurrency, pollingIntervalSeconds: 0.5, burstWhenBatchFull: true };
  const reached = new Promise((resolve) => {
    const handler = async (batch) => {
      handled += batch.length;
      if (last === undefined && handled >= jobs) resolve((last = now()));
    };
    boss.work(QUEUE, options, handler);
  });
  await Promise.race([reached, stuck(() => handled)]);
  const seconds = ((await recorded(boss)) - began) / 1e3;
  return { seconds, handled_seconds: (last - began) / 1e3, get handled() { return handled; } };
}

// When the end of the last job is recorded, as src/recorded.rs says it.
async function recorded(boss) {
  for (const began = now(); now() - began < STUCK_MS; await sleep(LOOK_MS)) {
    const look = now();
    const { rows } = await boss.getDb().executeSql(`select (${process.env.PEER_RECORDED}) as recorded`);
    if (rows[0].recorded) return look;
  }
  throw new Error(`${STUCK_MS / 1e3} s after the last handler was called there are jobs whose end is not recorded`);
}

// Fails when no job is handled for a minute.
async function stuck(handled) {
  for (let before = -1; before !== handled(); ) {
    before = handled();
    await sleep(STUCK_MS);
  }
  throw new Error(`no job in ${STUCK_MS / 1e3} s, after ${handled()}`);
}

async function latency(boss, { jobs }) {
  let started;
  await boss.work(QUEUE, { batchSize: 1, localConcurrency: 1, pollingIntervalSeconds: 0.5 }, async () => started?.(now()));
  await sleep(SETTLED_MS);
  const fromCommit = [];
  const fromCall = [];
  const began = now();
  for (let job = 0; job < jobs + WARM_JOBS && now() - began < LATENCY_MAX_MS; job++) {
    const start = new Promise((resolve) => (started = resolve));
    const called = now();
    await boss.send(QUEUE, { i: job });
    const committed = now();
    const at = await Promise.race([start, sleep(STUCK_MS).then(() => Promise.reject(new Error('no handler')))]);
    if (job >= WARM_JOBS) {
      fromCommit.push(Math.max(0, at - committed));
      fromCall.push(at - called);
    }
    await sleep(10 + ((job * 7919) % 21));
  }
  return {
    jobs: fromCommit.length,
    p50_ms: percentile(fromCommit, 50),
    p99_ms: percentile(fromCommit, 99),
    call_p50_ms: percentile(fromCall, 50),
    call_p99_ms: percentile(fromCall, 99),
  };
}

async function run(boss, call) {
  if (call.verb === 'setup') {
    await boss.createQueue(QUEUE, { notify: true });
    return {};
  }
  if (call.verb === 'enqueue') return enqueue(boss, call);
  if (call.verb === 'work') return work(boss, call);
  if (call.verb === 'latency') return latency(boss, call);
  throw new Error(`${call.verb} is none of setup, enqueue, work, latency`);
}

const call = readCall();
const boss = new PgBoss({
  connectionString: process.env.DATABASE_URL,
  max: Math.max(CONNECTIONS_MIN, call.concurrency + 2),
  supervise: false,
  schedule: false,
  useListenNotify: true,
});
boss.on('error', (error) => console.error(String(error)));
await boss.start();
const answer = await run(boss, call);
// In order, so that all ends are written before they are counted.
await boss.stop({ graceful: true, wait: true, timeout: STOP_MS });
console.log(JSON.stringify(answer));
process.exit(0);
