/** The job as the page knows it: the latest sample, history, events, and the last known staleness of each cell. */

import { History, pointOf } from "./history.js";

/** Events that are kept, the newest. */
export const MAX_EVENTS = 500;
/** Seconds for which a cell of the heat map keeps its value after samples, which are of 5 seconds, have none. */
export const HOLD_SECONDS = 5;
/** Rows of the heat map for workers that are gone. */
const MAX_GONE = 16;

const byName = new Intl.Collator("en", { numeric: true });

/** The word for the state of a worker: "waiting" is live, and its push is held. */
export function stateOf(worker) {
  return worker.state === "live" && (worker.held > 0 || worker.waiting_for) ? "waiting" : worker.state;
}

export class Job {
  constructor() {
    this.history = new History();
    this.latest = null;
    this.events = [];
    this.findings = [];
    /** The place of each worker in the order in which they were seen: its color. */
    this.places = new Map();
    this.staleness = { workers: [], variables: [], values: new Float64Array(0), times: new Float64Array(0) };
  }

  /** Takes what /api/job gives in place of all that was known. */
  load({ history, latest, events, findings }) {
    this.history.clear();
    for (const point of history) this.history.append(point);
    this.events = (events ?? []).slice(-MAX_EVENTS);
    this.latest = null;
    if (latest) this._take(latest);
    this.findings = findings ?? latest?.findings ?? [];
  }

  /** Adds a sample; one that is not newer than the last is left out. Returns whether it was added. */
  add(sample) {
    if (this.latest && sample.time <= this.latest.time) return false;
    if (this.latest?.job && sample.job && this.latest.job.number !== sample.job.number) this.history.clear();
    this.history.append(pointOf(sample));
    this.events.push(...(sample.events ?? []));
    this.events.splice(0, Math.max(0, this.events.length - MAX_EVENTS));
    this.findings = sample.findings ?? [];
    this._take(sample);
    return true;
  }

  /** The worker of this name in the latest sample, if there is one. */
  worker(name) {
    return this.latest?.workers.find((worker) => worker.name === name);
  }

  /** The variable of this name in the latest sample, if there is one. */
  variable(name) {
    return this.latest?.variables.find((variable) => variable.name === name);
  }

  /** Whether a worker that was seen is neither live nor starting. */
  isGone(name) {
    const worker = this.worker(name);
    return !worker || worker.state === "lost" || worker.state === "left";
  }

  _take(sample) {
    this.latest = sample;
    const { workers } = sample;
    workers.sort((one, other) => byName.compare(one.name, other.name));
    for (const { name } of workers) if (!this.places.has(name)) this.places.set(name, this.places.size);
    this._takeMatrix(sample.matrix, workers, sample.time);
  }

  /** `cells` has the rows of live workers only; the newest of those that are gone stay, without values. */
  _takeMatrix({ workers: live, variables, cells }, all, now) {
    const gone = all.filter(({ name, state }) => state !== "live" && !live.includes(name)).slice(-MAX_GONE);
    const shown = new Set([...live, ...gone.map(({ name }) => name)]);
    const workers = all.map(({ name }) => name).filter((name) => shown.has(name));
    const same = (one, other) => one.length === other.length && one.every((name, place) => name === other[place]);
    if (!same(workers, this.staleness.workers) || !same(variables, this.staleness.variables)) {
      this.staleness = rearranged(this.staleness, workers, variables);
    }
    const { values, times } = this.staleness;
    const wide = variables.length;
    const rows = new Map(live.map((name, place) => [name, cells[place]]));
    workers.forEach((name, line) => {
      const row = rows.get(name);
      for (let place = 0; place < wide; place += 1) {
        const cell = row?.[place] ?? null;
        const at = line * wide + place;
        if (cell !== null) {
          values[at] = cell;
          times[at] = now;
        } else if (now - times[at] > HOLD_SECONDS) {
          values[at] = NaN;
        }
      }
    });
  }
}

/** The same cells for other lists of workers and variables. */
function rearranged(old, workers, variables) {
  const size = workers.length * variables.length;
  const fresh = { workers, variables, values: new Float64Array(size).fill(NaN), times: new Float64Array(size) };
  const rows = new Map(old.workers.map((name, place) => [name, place]));
  const columns = new Map(old.variables.map((name, place) => [name, place]));
  workers.forEach((worker, line) => {
    variables.forEach((variable, place) => {
      if (!rows.has(worker) || !columns.has(variable)) return;
      const from = rows.get(worker) * old.variables.length + columns.get(variable);
      fresh.values[line * variables.length + place] = old.values[from];
      fresh.times[line * variables.length + place] = old.times[from];
    });
  });
  return fresh;
}
