/** Staleness: by worker and variable, and its distribution. */

import { HeatMap, heatMapHeight } from "../charts/heat_map.js";
import { distribution, since, StalenessChart } from "../charts/staleness_chart.js";
import { BANDS, bandName } from "../data/history.js";
import { count, fixed, number } from "../data/format.js";
import { ChartCard } from "./card.js";
import { element, KeyedList, linkTo, setAttribute, setText } from "../dom.js";
import { numberColumn, Table, textColumn } from "./table.js";

/** Seconds that the distribution calls "now". */
const NOW = 10;
/** A table of more cells is filled only once in so many seconds. */
const MANY_CELLS = 2000;
const LARGE_TABLE_SECONDS = 10;

/** The word for a worker that is gone, or "". */
export function goneWord(job, name) {
  return job.isGone(name) ? (job.worker(name)?.state ?? "gone") : "";
}

/** Whether a row of the heat map has no value: the worker has not pushed for some time. */
function isSilent({ staleness: { variables, values } }, line) {
  return values.subarray(line * variables.length, (line + 1) * variables.length).every(Number.isNaN);
}

/** The stalest cells, the most stale first: {worker, variable, value}. */
export function stalest(job, wanted) {
  const { workers, variables, values } = job.staleness;
  const cells = [];
  workers.forEach((worker, line) => {
    if (goneWord(job, worker)) return;
    variables.forEach((variable, place) => {
      const value = values[line * variables.length + place];
      if (!Number.isNaN(value)) cells.push({ worker, variable, value });
    });
  });
  return cells.sort((one, other) => other.value - one.value).slice(0, wanted);
}

export class HeatMapCard extends ChartCard {
  constructor(job) {
    const table = new MatrixTable(job);
    const told = () => {
      const [worst] = stalest(job, 1);
      const gone = job.staleness.workers.filter((name) => goneWord(job, name));
      const lost = gone.length ? ` Gone: ${gone.join(", ")}.` : "";
      if (!worst) return `Staleness by worker and variable: no pushes in the last seconds.${lost}`;
      return `Staleness by worker and variable: the stalest is ${worst.worker} on ${worst.variable} with ${fixed(worst.value)}.${lost}`;
    };
    const note = "updates that a push had missed, mean of the last 5 seconds";
    super("Staleness by worker × variable", "wide", note, told, table, () => table.update());
    this._job = job;
    this.chart = new HeatMap(
      this.canvas,
      () => {
        const { workers } = job.staleness;
        const gone = workers.map((name) => goneWord(job, name));
        return { ...job.staleness, gone, notes: gone.map((word, line) => word || (isSilent(job, line) ? "no push" : "")) };
      },
      (worker, variable) => {
        location.hash = worker === null ? linkTo("variable", variable) : linkTo("worker", worker);
      },
    );
  }

  update() {
    const height = `${heatMapHeight(this._job.staleness.workers.length)}px`;
    if (this.canvas.style.minHeight !== height) this.canvas.style.minHeight = height;
    super.update();
  }
}

/** The same as a table: a row a worker, a column a variable. */
class MatrixTable {
  constructor(job) {
    this._job = job;
    this._updated = -Infinity;
    const [heads, body] = [element("tr"), element("tbody")];
    const caption = "Staleness by worker and variable";
    const table = element("table", {}, element("caption", {}, caption), element("thead", {}, heads), body);
    this.node = element("div", { className: "scroll", role: "region", tabIndex: 0, "aria-label": caption }, table);
    this._heads = new KeyedList(heads, ({ name }) => ({
      node: element("th", { scope: "col", className: name === null ? "" : "number" }, name === null ? "Worker" : linkElement("variable", name)),
      update: () => {},
    }));
    this._rows = new KeyedList(body, ({ name }) => {
      const row = element("tr", {}, element("th", { scope: "row" }, linkElement("worker", name)));
      return { node: row, update: ({ line }) => this._fill(row, name, line) };
    });
  }

  update() {
    const { workers, variables } = this._job.staleness;
    const now = performance.now();
    const large = workers.length * variables.length > MANY_CELLS;
    if (large && now - this._updated < 1000 * LARGE_TABLE_SECONDS) return;
    this._updated = now;
    this._heads.update([{ name: null }, ...variables.map((name) => ({ name }))], ({ name }) => name);
    this._rows.update(
      workers.map((name, line) => ({ name, line })),
      ({ name }) => name,
    );
  }

  _fill(row, name, line) {
    const { variables, values } = this._job.staleness;
    while (row.children.length > variables.length + 1) row.lastChild.remove();
    while (row.children.length < variables.length + 1) row.append(element("td", { className: "number" }));
    const gone = goneWord(this._job, name);
    setAttribute(row, "data-state", gone || null);
    variables.forEach((_, place) => setText(row.children[place + 1], gone || fixed(values[line * variables.length + place])));
  }
}

function linkElement(kind, name) {
  const link = element("a", {}, name);
  link.setAttribute("href", linkTo(kind, name));
  return link;
}

export class DistributionCard extends ChartCard {
  constructor(job) {
    const table = new Table("Distribution of staleness", [
      textColumn("Staleness", ({ band }) => bandName(band)),
      numberColumn(`Last ${NOW} s`, ({ now }) => `${number(100 * now, 2)} %`),
      numberColumn("All of the history", ({ all }) => `${number(100 * all, 2)} %`),
    ]);
    const rows = () => {
      const [now, all] = [distribution(job.history, since(job.history, NOW)), distribution(job.history, 0)];
      return BANDS.map((_, band) => ({ band, now: now[band], all: all[band] })).filter((row) => row.all > 0);
    };
    const told = () => {
      const last = job.history.length - 1;
      return `Distribution of staleness: median ${count(job.history.p50[last])}, 99th percentile ${count(job.history.p99[last])}`;
    };
    const note = "median; p99 dashed";
    super("Distribution of staleness", "narrow", note, told, table, () => table.update(rows(), ({ band }) => band));
    this.chart = new StalenessChart(this.canvas, () => job.history, NOW);
  }
}
