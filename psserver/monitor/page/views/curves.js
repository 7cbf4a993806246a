/** The curves of all workers: cost over steps or time, and steps per second. */

import { clock, count, fixed, number, plural } from "../data/format.js";
import { LineChart } from "../charts/line_chart.js";
import { StackedChart } from "../charts/stacked_chart.js";
import { theme, workerStyle } from "../charts/colors.js";
import { ChartCard, choice } from "./card.js";
import { element, KeyedList, linkTo, setAttribute, setText } from "../dom.js";
import { nameColumn, numberColumn, paint, Table, textColumn } from "./table.js";
import { stateOf } from "../data/job.js";

/** Costs whose largest and smallest differ by more are shown on a logarithmic axis, until the reader chooses. */
const WIDE = 20;
/** Workers whose rates are stacked; of more only the sum is shown: their areas would be too thin to tell apart. */
const MAX_STACKED = 12;

/** The style of a worker's lines. */
export function styleOf(job, name) {
  return workerStyle(job.places.get(name) ?? 0, job.isGone(name));
}

/** Events that are marked on a time or step axis: warnings. */
export function marksOf(job, axis) {
  return job.events.filter(({ warning }) => warning).map((event) => ({ at: event[axis], color: theme().warning }));
}

const names = (job) => [...job.history.workers.keys()].filter((name) => job.places.has(name));
const title = ({ history }) => (at) => `step ${count(history.step[at])}, ${clock(history.time[at])}`;

export class CostCard extends ChartCard {
  constructor(job) {
    const table = new Table("Cost by worker", [
      nameColumn("Worker", "worker", ({ name }) => name, ({ name }) => styleOf(job, name)),
      textColumn("State", stateOf),
      numberColumn("Cost", ({ cost }) => number(cost, 4)),
      numberColumn("Steps", ({ steps }) => count(steps)),
    ]);
    super("Cost by worker", "wide", "moving average of the loss of its pushes", () => summary(job), table, () =>
      table.update(job.latest.workers, ({ name }) => name),
    );
    this._job = job;
    this._axis = "step";
    this._scale = null;
    this._xAxis = choice("Axis", { step: "Steps", time: "Time" }, this._axis, (value) => this._set("_axis", value));
    this._yAxis = choice("Scale", { linear: "Linear", log: "Log" }, "linear", (value) => this._set("_scale", value));
    this.controls.prepend(this._xAxis.node, this._yAxis.node);
    this.chart = new LineChart(this.canvas, () => this._describe());
    this._legend = new Legend(job, (name) => this._highlight(name));
    this.body.append(this._legend.node);
  }

  update() {
    super.update();
    this._legend.update();
  }

  _set(name, value) {
    this[name] = value;
    this.update();
  }

  _highlight(name) {
    this.chart.highlight = name;
    this.chart.request();
  }

  _describe() {
    const { history } = this._job;
    const series = names(this._job).map((name) => ({ name, y: history.workers.get(name).cost, ...styleOf(this._job, name) }));
    const yKind = this._scale ?? (isWide(series, history.length) ? "log" : "linear");
    this._yAxis.choose(yKind);
    const [xKind, x] = [this._axis, history[this._axis]];
    const marks = marksOf(this._job, this._axis);
    return { length: history.length, x, xKind, yKind, format: (value) => number(value), series, marks, title: title(this._job) };
  }
}

function isWide(series, length) {
  let [low, high] = [Infinity, 0];
  for (const { y } of series) {
    for (let at = 0; at < length; at += 1) {
      if (y[at] <= 0) return false;
      if (y[at] < low) low = y[at];
      if (y[at] > high) high = y[at];
    }
  }
  return high > WIDE * low;
}

function summary(job) {
  const workers = job.latest.workers.filter(({ cost }) => cost !== null && cost !== undefined);
  if (!workers.length) return "Cost by worker: no pushes yet";
  const costs = workers.map(({ name, cost }) => `${name} ${number(cost)}`);
  return `Cost by worker at step ${count(job.latest.step)}: ${costs.slice(0, 16).join(", ")}${costs.length > 16 ? " and others" : ""}`;
}

/** The names of workers beside the lines' colors; each leads to its own curves. */
class Legend {
  constructor(job, onPoint) {
    this.node = element("ul", { className: "legend", "aria-label": "Workers" });
    this._job = job;
    this._list = new KeyedList(this.node, ({ name }) => {
      const [key, link, state] = [element("i", { className: "key" }), element("a"), element("span", { className: "note" })];
      setText(link, name);
      setAttribute(link, "href", linkTo("worker", name));
      const node = element("li", {}, key, link, state);
      node.addEventListener("pointerenter", () => onPoint(name));
      node.addEventListener("pointerleave", () => onPoint(null));
      return {
        node,
        update: (worker) => {
          paint(key, styleOf(job, name));
          setAttribute(node, "data-state", worker.state);
          setText(state, worker.state === "live" ? "" : worker.state);
        },
      };
    });
  }

  update() {
    this._list.update(this._job.latest.workers, ({ name }) => name);
  }
}

export class RateCard extends ChartCard {
  constructor(job) {
    const table = new Table("Steps per second by worker", [
      nameColumn("Worker", "worker", ({ name }) => name),
      numberColumn("Steps/s", ({ steps_per_second: rate }) => fixed(rate)),
    ]);
    const told = () => {
      const rate = job.history.rate[job.history.length - 1];
      return `Steps per second: ${fixed(rate)} by ${plural(job.latest.workers.filter(({ state }) => state === "live").length, "live worker")}`;
    };
    super("Steps per second", "narrow", "by worker", told, table, () => table.update(job.latest.workers, ({ name }) => name));
    this.chart = new StackedChart(this.canvas, () => {
      const { length, time, rate, workers } = job.history;
      const stacked = names(job).map((name) => ({ name, y: workers.get(name).rate, ...styleOf(job, name) }));
      const series = stacked.length > MAX_STACKED ? [{ name: "all workers", y: rate, color: theme().accent }] : stacked;
      return { length, x: time, series, title: title(job) };
    });
  }
}
