'use strict';
// A worker in JavaScript: softmax regression on MNIST, beside Python workers of examples/softmax_mnist.py in one job, or
// alone. docs/protocol.md describes what it does; it is written from that page and protos/ alone.
//
//   npm ci && node worker.js --servers 127.0.0.1:7070 [--epochs 10] [--tls-ca ca.crt] [--token-file worker.token]

const crypto = require('node:crypto'), fs = require('node:fs'), os = require('node:os'), path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises'), { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js'), loader = require('@grpc/proto-loader');
const { epochOrder } = require('./epoch_order.js'), { SIZE, gradientsOf } = require('./softmax.js');

const SECONDS_OF_RETRIES = 60;
const { values: options } = parseArgs({ options: {
  servers: { type: 'string', default: '127.0.0.1:7070' }, epochs: { type: 'string', default: '10' },
  name: { type: 'string', default: `${os.hostname()}-${process.pid}` },
  'tls-ca': { type: 'string' }, 'token-file': { type: 'string' },
} });

// --- calls ---------------------------------------------------------------------------------------------------------------

const definition = loader.loadSync('pswire/v1/paramserver.proto', {
  includeDirs: [path.join(__dirname, '../../protos')], keepCase: true, longs: String, enums: String, defaults: true });
const { ParameterServer } = grpc.loadPackageDefinition(definition).paramserver.v1;
const credentials = options['tls-ca'] ? grpc.credentials.createSsl(fs.readFileSync(options['tls-ca'])) : grpc.credentials.createInsecure();
const channel = { 'grpc.enable_retries': 0, 'grpc.initial_reconnect_backoff_ms': 100, 'grpc.max_reconnect_backoff_ms': 500 };
const shards = options.servers.split(',').map((address) => new ParameterServer(address, credentials, channel));
const bearer = options['token-file'] && `Bearer ${fs.readFileSync(options['token-file'], 'utf8').trim()}`;
const counts = { OUTCOME_APPLIED: 0, OUTCOME_REPEATED: 0, OUTCOME_DROPPED: 0 };
let sender = { worker: options.name, incarnation: 0 }, joined = [], cut = 0, pushing = false, shownCut = 0, rejoins = 0;

/** One attempt of a call to a shard. */
function attempt(shard, method, request) {
  const metadata = new grpc.Metadata();
  if (bearer) metadata.set('authorization', bearer);
  if (joined[0]) metadata.set('ps-member-bin', joined[0].token), metadata.set('ps-shard', `${shard}`);
  return new Promise((resolve, reject) => shards[shard][method](request, metadata, { deadline: Date.now() + 30_000 },
    (error, answer) => error ? reject(error) : resolve(answer)));
}

/** A call, with the same request until it is answered: what changes a shard has a sequence number, and is made once. */
async function call(shard, method, request) {
  for (const until = Date.now() + 1000 * SECONDS_OF_RETRIES; ; await sleep(200)) {
    try {
      const answer = await attempt(shard, method, request);
      cut = Math.max(cut, Number(answer.cut ?? 0));
      return answer;
    } catch (error) {
      const [name] = error.metadata?.get('ps-error') ?? [];
      if (name === 'NotJoined' && joined[shard]) rejoins += 1, await call(shard, 'Join', joinRequest(shard));
      else if ((name && !['Unavailable', 'TimedOut'].includes(name)) || Date.now() > until)
        throw new Error(`${method} to shard ${shard}: ${name ?? grpc.status[error.code]}: ${error.details}`);
      console.error(`${method} to shard ${shard} again: ${name ?? grpc.status[error.code]}`);
    }
  }
}

// --- membership ------------------------------------------------------------------------------------------------------------

const nonce = crypto.randomBytes(8).readBigUInt64BE() >> 2n, nameKey = crypto.randomBytes(32);

function joinRequest(shard) {
  const again = joined.length === shards.length;
  return { worker: sender.worker, incarnation: sender.incarnation, shard, shards: shards.length, process_nonce: `${nonce + 1n}`,
    tensor_transport: 'gRPC', name_key: nameKey, job: joined[0]?.job ?? { session: 1 }, program: 'softmax_mnist', cut: shownCut,
    states: again ? joined.map((one) => one.state) : [], timeline: again ? joined[shard].timeline : 0 };
}

async function join() {
  for (let shard = 0; shard < shards.length; shard++) {
    const answer = await call(shard, 'Join', joinRequest(shard));
    if (!shard) sender = { worker: sender.worker, incarnation: answer.incarnation };
    joined.push(answer);
  }
  if (shards.length > 1 && (joined[0].consistency.startsWith('sync') || joined[0].staleness.startsWith('drop')))
    throw new Error('this worker does not follow the order of shard 0 under sync and drop: use one shard');
  setInterval(() => shards.forEach((_, shard) => renew(shard).catch(() => {})), 1000 * joined[0].lease / 3).unref();
}

/** Renew a lease. While a push is open, it shows no newer cut than the push does. */
function renew(shard, idle = false) {
  if (!pushing) shownCut = cut;
  const request = { sender, idle, settled: idle ? sequence : 0, cut: shownCut, tensor_transport: 'gRPC', timeline: joined[shard].timeline };
  return attempt(shard, 'Renew', request).then((answer) => { cut = Math.max(cut, Number(answer.cut)); });
}

// --- variables -----------------------------------------------------------------------------------------------------------

const optimizer = { fields: { fields: { kind: { stringValue: 'gradient_descent' }, learning_rate: { numberValue: 0.01 } } } };
const variables = { W: { shape: [784, 10] }, b: { shape: [10] } }; // with shard, value and version once they are registered
const bytes = (array) => Buffer.from(array.buffer, array.byteOffset, array.byteLength);
const tensor = (name, array) => ({ name, dtype: 'float32', shape: variables[name].shape, inline: bytes(array) });
const on = (shard) => Object.keys(variables).filter((name) => variables[name].shard === shard);
let sequence = 0;

function take(values) {
  for (const { tensor: { name, inline }, version } of values)
    Object.assign(variables[name], { version, value: new Float32Array(new Uint8Array(inline).buffer) });
}

/** Place each variable, the largest first, on the shard with the fewest bytes, and register them. */
async function register() {
  const held = shards.map(() => 0);
  const places = Object.entries(variables).map(([name, one]) => {
    one.value = new Float32Array(one.shape.reduce((a, b) => a * b));
    held[one.shard = held.indexOf(Math.min(...held))] += one.value.byteLength; // W, which is larger, comes first
    return { name, shard: one.shard };
  });
  const states = joined.map((one) => one.state), declared = (name) => ({ tensor: tensor(name, variables[name].value), optimizer });
  for (let shard = 0; shard < shards.length; shard++) {
    const message = { sender, states, places: shard || shards.length < 2 ? [] : places, cut: shownCut, declarations: on(shard).map(declared) };
    take((await call(shard, 'Register', message)).values);
  }
}

/** Push gradients by name to the shards of their variables, shard 0 first, and take the fresh values. */
async function push(gradients, loss, progress) {
  pushing = true;
  shownCut = cut;
  sequence += 1;
  const others = shards.map((_, shard) => shard).filter((shard) => shard && on(shard).length);
  const request = (shard) => ({ sender, sequence, loss, pull: on(shard), cut: shownCut, shards: others,
    gradients: on(shard).map((name) => ({ tensor: tensor(name, gradients[name]), version: variables[name].version })) });
  const decided = await call(0, 'Push', { ...request(0), progress: [progress] });
  const follows = joined[0].consistency !== 'async'; // then shard 0 decides for all of them
  for (const shard of others) {
    if (follows && decided.outcome === 'OUTCOME_DROPPED') take((await call(shard, 'Pull', { sender, names: on(shard) })).values);
    else take((await call(shard, 'Push', { ...request(shard), group: decided.group, global_step: Math.max(0, Number(decided.global_step) - 1),
      cut: follows ? decided.cut : shownCut })).values);
  }
  take(decided.values);
  counts[decided.outcome] += 1;
  pushing = false;
}

// --- training --------------------------------------------------------------------------------------------------------------

const BATCH = 100, queue = { name: 'batches-1', size: SIZE, block: 16 * BATCH, epochs: Number(options.epochs), seed: 0 };

async function train() {
  let order, epoch, finished, reports = 0;
  for (;;) {
    const taken = await call(0, 'Take', { sender, queue, finished, reports_received: reports, timeline: joined[0].timeline });
    for (const report of taken.reports) {
      reports = report.epoch;
      if (taken.chief) console.log(`epoch ${report.epoch}: mean cost ${report.cost.toFixed(4)} over ${report.examples} examples`);
    }
    finished = null;
    if (taken.done || taken.stopped) return;
    if (!taken.block) { // others hold the rest
      await renew(0, true).catch(() => {});
      continue;
    }
    const { number: block, start, stop } = taken.block;
    if (epoch !== taken.block.epoch) order = epochOrder(queue.size, queue.seed, epoch = taken.block.epoch);
    const before = rejoins; // a worker that has joined again has lost its block
    let cost_sum = 0;
    for (let position = Number(start); position < Number(stop) && before === rejoins;) {
      const rows = order.subarray(position, Math.min(position + BATCH, Number(stop)));
      const { cost, gradients } = gradientsOf(variables.W.value, variables.b.value, rows);
      cost_sum += cost * rows.length;
      position += rows.length;
      await push(gradients, cost, { queue: queue.name, block, position, cost_sum });
    }
    if (before === rejoins) finished = { number: block, cost_sum };
  }
}

async function leave(send, failed) {
  let done = false;
  for (let shard = 0; shard < joined.length; shard++) ({ done } = await send(shard, 'Leave', { sender, failed, done }));
}

async function main() {
  await join();
  await register();
  await train();
  await leave(call, false);
  const { OUTCOME_APPLIED: applied, OUTCOME_REPEATED: repeated, OUTCOME_DROPPED: dropped } = counts;
  console.log(`${options.name}: ${applied} pushes applied, ${repeated} answered again, ${dropped} dropped`);
  shards.forEach((shard) => shard.close());
}

main().catch(async (error) => {
  console.error(`${options.name}: ${error.message}`);
  await leave(attempt, true).catch(() => {});
  process.exit(1);
});
