/**
 * The history of a job in columns of fixed size: the memory of the page does not grow. When the columns are full, every
 * second point is dropped, so that older times are coarser.
 */

export const CAPACITY = 1024;
/** Workers, and variables, whose series are kept; one that is no longer reported makes room. */
export const MAX_SERIES = 512;
/** The largest staleness of each band of the distribution; a count of a staleness goes to the first band that has it. */
export const BANDS = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512, 1024, Infinity];

const column = () => new Float64Array(CAPACITY).fill(NaN);

/** The index of the band of a staleness. */
export function bandOf(staleness) {
  return BANDS.findIndex((limit) => staleness <= limit);
}

/** The name of a band: "3", "5–6", "over 1,024". */
export function bandName(band) {
  if (BANDS[band] === Infinity) return `over ${BANDS[band - 1].toLocaleString("en-US")}`;
  const first = band ? BANDS[band - 1] + 1 : 0;
  return first === BANDS[band] ? `${first}` : `${first}–${BANDS[band]}`;
}

/** The point that a sample adds: as psserver/monitor/history.py makes those of /api/job. */
export function pointOf(sample) {
  const pushes = ({ stalenesses }) => stalenesses.reduce((sum, [, count]) => sum + count, 0);
  // each push is counted once: by the shard that got the most of them
  const shard = sample.shards.reduce((most, one) => (most && pushes(most) >= pushes(one) ? most : one), null);
  const live = sample.workers.filter(({ state }) => state === "live");
  const row = (worker) => [worker.steps, worker.cost, worker.staleness, worker.steps_per_second];
  return {
    time: sample.time,
    step: sample.step,
    rate: sample.steps_per_second,
    p50: shard?.p50,
    p99: shard?.p99,
    stalenesses: shard?.stalenesses ?? [],
    workers: Object.fromEntries(live.map((worker) => [worker.name, row(worker)])),
    variables: Object.fromEntries(sample.variables.map(({ name, staleness }) => [name, staleness])),
  };
}

export class History {
  constructor() {
    this.clear();
  }

  /** Forgets all points and series. */
  clear() {
    this.length = 0;
    this.time = column();
    this.step = column();
    this.rate = column();
    this.p50 = column();
    this.p99 = column();
    this.bands = new Float32Array(CAPACITY * BANDS.length);
    this.workers = new Map();
    this.variables = new Map();
  }

  /** Adds a point; points come in the order of their times. */
  append(point) {
    if (this.length === CAPACITY) this._thin();
    const place = this.length;
    this.length += 1;
    for (const name of ["time", "step", "rate", "p50", "p99"]) this[name][place] = point[name] ?? NaN;
    this.bands.fill(0, place * BANDS.length, (place + 1) * BANDS.length);
    for (const [atMost, pushes] of point.stalenesses) this.bands[place * BANDS.length + bandOf(atMost)] += pushes;
    for (const [name, [steps, cost, staleness, rate]] of Object.entries(point.workers)) {
      const series = this._series(this.workers, name, ["steps", "cost", "staleness", "rate"], point.workers);
      series.steps[place] = steps ?? NaN;
      series.cost[place] = cost ?? NaN;
      series.staleness[place] = staleness ?? NaN;
      series.rate[place] = rate ?? NaN;
    }
    for (const [name, staleness] of Object.entries(point.variables)) {
      this._series(this.variables, name, ["staleness"], point.variables).staleness[place] = staleness ?? NaN;
    }
  }

  _series(all, name, columns, present) {
    let series = all.get(name);
    if (!series) {
      if (all.size >= MAX_SERIES) {
        for (const other of all.keys()) {
          if (!(other in present)) {
            all.delete(other);
            break;
          }
        }
      }
      series = Object.fromEntries(columns.map((one) => [one, column()]));
      if (all.size < MAX_SERIES) all.set(name, series);
    }
    return series;
  }

  /** Keeps the second of each two points, with the pushes of both. */
  _thin() {
    const half = CAPACITY / 2;
    const thin = (values) => {
      for (let place = 0; place < half; place += 1) values[place] = values[2 * place + 1];
      values.fill(NaN, half);
    };
    for (const values of [this.time, this.step, this.rate, this.p50, this.p99]) thin(values);
    for (const all of [this.workers, this.variables]) {
      for (const series of all.values()) Object.values(series).forEach(thin);
    }
    const wide = BANDS.length;
    for (let place = 0; place < half; place += 1) {
      for (let band = 0; band < wide; band += 1) {
        const first = 2 * place * wide + band;
        this.bands[place * wide + band] = this.bands[first] + this.bands[first + wide];
      }
    }
    this.bands.fill(0, half * wide);
    this.length = half;
  }
}
