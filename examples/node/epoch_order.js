'use strict';
// The order in which an epoch visits the rows of a dataset, as docs/protocol.md describes it: every worker of a job computes
// the same one. Raw 64-bit outputs of PCG64, seeded by numpy's SeedSequence, are the keys by which the rows are sorted.

const U32 = 0xffffffffn, U64 = (1n << 64n) - 1n, U128 = (1n << 128n) - 1n;

/** The words of an integer from 0 up, the lowest first: uint32. */
function words(integer) {
  const found = [Number(BigInt(integer) & U32)];
  for (let rest = BigInt(integer) >> 32n; rest; rest >>= 32n) found.push(Number(rest & U32));
  return found;
}

/** `count` words of numpy's SeedSequence(seed, spawn_key=(key,)). */
function seedWords(seed, key, count) {
  let constant = 0x43b0d7e5;
  const hash = (value, factor) => {
    value = (value ^ constant) >>> 0;
    constant = Math.imul(constant, factor) >>> 0;
    value = Math.imul(value, constant) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const mix = (x, y) => {
    const value = (Math.imul(0xca01f9dd, x) - Math.imul(0x4973f715, y)) >>> 0;
    return (value ^ (value >>> 16)) >>> 0;
  };
  const entropy = words(seed);
  while (entropy.length < 4) entropy.push(0);
  entropy.push(...words(key));
  const pool = entropy.slice(0, 4).map((word) => hash(word, 0x931e8875));
  for (let from = 0; from < 4; from++)
    for (let to = 0; to < 4; to++) if (from !== to) pool[to] = mix(pool[to], hash(pool[from], 0x931e8875));
  for (const word of entropy.slice(4)) for (let to = 0; to < 4; to++) pool[to] = mix(pool[to], hash(word, 0x931e8875));
  constant = 0x8b51f9dd;
  return Array.from({ length: count }, (_, index) => hash(pool[index % 4], 0x58f38ded));
}

/** A permutation of 0 ... size - 1. */
function epochOrder(size, seed, epoch) {
  const [high, low, highStream, lowStream] = Array.from({ length: 4 }, (_, index, pair = seedWords(seed, epoch, 8)) =>
    BigInt(pair[2 * index]) | (BigInt(pair[2 * index + 1]) << 32n));
  const multiplier = 0x2360ed051fc65da44385df649fccf645n;
  const increment = ((((highStream << 64n) | lowStream) << 1n) | 1n) & U128;
  let state = ((increment + ((high << 64n) | low)) * multiplier + increment) & U128;
  const keys = new BigUint64Array(size);
  for (let index = 0; index < size; index++) {
    state = (state * multiplier + increment) & U128;
    const folded = (state >> 64n) ^ (state & U64), rotation = state >> 122n;
    keys[index] = ((folded >> rotation) | (folded << (64n - rotation))) & U64;
  }
  return Uint32Array.from({ length: size }, (_, row) => row).sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
}

module.exports = { epochOrder };
