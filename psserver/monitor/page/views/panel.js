/** The curves of one worker or variable, beside the page: shown while the address ends with #worker=... or #variable=... */

import { bytes, clock, count, duration, fixed, number, shape, updateRule } from "../data/format.js";
import { stateOf } from "../data/job.js";
import { theme } from "../charts/colors.js";
import { LineChart } from "../charts/line_chart.js";
import { marksOf, styleOf } from "./curves.js";
import { element, KeyedList, setAttribute, setHidden, setText } from "../dom.js";
import { goneWord } from "./staleness.js";
import { nameColumn, numberColumn, Table } from "./table.js";
import { eventTable } from "./timeline.js";

/** What the end of the address names: {kind, name}, or null. */
function chosen() {
  const [, kind, name] = /^#(worker|variable)=(.*)$/.exec(location.hash) ?? [];
  try {
    return kind ? { kind, name: decodeURIComponent(name) } : null;
  } catch {
    return null; // not an encoded name
  }
}

export class Panel {
  constructor(parent, job) {
    this._job = job;
    this._title = element("h2", { id: "panel-title", tabIndex: -1 });
    const close = element("button", { type: "button", className: "close", "aria-label": "Close" }, "✕");
    close.addEventListener("click", () => this._leave());
    this._content = element("div", { className: "content" });
    this.node = element("aside", { className: "panel", role: "dialog", "aria-labelledby": "panel-title", hidden: true });
    this.node.append(element("header", {}, this._title, close), this._content);
    parent.append(this.node);
    this._shown = null;
    this._view = null;
    this._before = null;
    addEventListener("hashchange", () => this._follow(true));
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !this.node.hidden) this._leave();
    });
  }

  update() {
    if (this._shown === null) this._follow(false);
    this._view?.update();
  }

  _leave() {
    history.replaceState(null, "", location.pathname + location.search);
    this._follow(false);
  }

  /** Shows what the address names now; `focus`: someone has chosen it. */
  _follow(focus) {
    const wanted = this._job.latest ? chosen() : null;
    const [key, shown] = [wanted && `${wanted.kind}=${wanted.name}`, this._shown];
    if (key === shown) return;
    this._view?.close();
    this._view = null;
    this._content.replaceChildren();
    this._shown = key;
    setHidden(this.node, !wanted);
    document.body.classList.toggle("with-panel", Boolean(wanted));
    if (!wanted) {
      this._before?.focus();
      this._before = null;
      return;
    }
    this._before ??= document.activeElement;
    setText(this._title, wanted.name);
    this._view = new (wanted.kind === "worker" ? WorkerView : VariableView)(this._content, this._job, wanted.name);
    this._view.update();
    this.node.scrollTop = 0;
    if (focus) this._title.focus();
  }
}

/** Facts, charts and tables about one thing. */
class View {
  constructor(parent, job, name) {
    this.job = job;
    this.name = name;
    this._parent = parent;
    this._charts = [];
    this._facts = element("dl", { className: "facts" });
    this._factList = new KeyedList(this._facts, ([title]) => {
      const value = element("dd");
      return { node: element("div", {}, element("dt", {}, title), value), update: ([, text]) => setText(value, text) };
    });
    parent.append(this._facts);
  }

  facts(rows) {
    this._factList.update(rows, ([title]) => title);
  }

  /** A chart of one series over time: `values()` has them, `format(value)` as text. */
  chart(title, values, format, style) {
    const canvas = element("canvas", { role: "img" });
    this._parent.append(element("section", {}, element("h3", {}, title), element("div", { className: "figure" }, canvas)));
    const { history } = this.job;
    const chart = new LineChart(canvas, () => ({
      length: history.length,
      x: history.time,
      xKind: "time",
      yKind: "linear",
      format,
      series: [{ name: title, y: values() ?? new Float64Array(history.time.length).fill(NaN), ...style() }],
      marks: marksOf(this.job, "time"),
      title: (at) => `step ${count(history.step[at])}, ${clock(history.time[at])}`,
    }));
    const summary = () => {
      const last = values()?.[history.length - 1];
      setAttribute(canvas, "aria-label", `${title} of ${this.name}: now ${format(last)}`);
    };
    this._charts.push({ chart, summary });
  }

  table(title, table) {
    this._parent.append(element("section", {}, element("h3", {}, title), table.node));
    return table;
  }

  update() {
    for (const { chart, summary } of this._charts) {
      chart.request();
      summary();
    }
    this.refresh();
  }

  close() {
    for (const { chart } of this._charts) chart.close();
  }
}

class WorkerView extends View {
  constructor(...all) {
    super(...all);
    const series = () => this.job.history.workers.get(this.name);
    const style = () => styleOf(this.job, this.name);
    this.chart("Cost", () => series()?.cost, (value) => number(value), style);
    this.chart("Staleness", () => series()?.staleness, (value) => fixed(value), style);
    this.chart("Steps per second", () => series()?.rate, (value) => fixed(value), style);
    const columns = [nameColumn("Variable", "variable", ({ name }) => name), numberColumn("Staleness", ({ value }) => fixed(value))];
    this._variables = this.table("Staleness by variable, the stalest first", new Table(`Staleness of ${this.name}`, columns));
    this._events = this.table("Events", eventTable(`Events of ${this.name}`));
  }

  refresh() {
    const worker = this.job.worker(this.name);
    this.facts(worker ? factsOf(worker) : [["State", "not in this job, or no longer listed"]]);
    const { workers, variables, values } = this.job.staleness;
    const line = workers.indexOf(this.name);
    const known = line < 0 ? [] : variables.map((name, place) => ({ name, value: values[line * variables.length + place] }));
    const rows = known.filter(({ value }) => !Number.isNaN(value)).sort((one, other) => other.value - one.value);
    this._variables.update(rows.slice(0, 50), ({ name }) => name);
    this._events.update(this.job.events.filter((event) => event.worker === this.name));
  }
}

function factsOf(worker) {
  const facts = [
    ["State", stateOf(worker) + (worker.chief ? ", chief" : "")],
    ["Steps", `${count(worker.steps)}, ${fixed(worker.steps_per_second)}/s`],
    ["Cost", number(worker.cost, 4)],
    ["Staleness", `${fixed(worker.staleness)}, mean ${fixed(worker.mean_staleness)}`],
    ["Held", `${duration(worker.waited)} in all`],
    ["Dropped", count(worker.dropped)],
    ["Clipped", count(worker.clipped)],
    ["Largest gradient", number(worker.gradient)],
    ["Epoch", worker.epoch ? count(worker.epoch) : "–"],
    ["Lease", worker.lease_left === null ? "–" : `${duration(worker.lease_left)} left`],
    ["Incarnation", `${count(worker.incarnation)} (worker ${count(worker.number)})`],
    ["Transport", worker.transport || "–"],
    ["Encoding", worker.encoding || "–"],
  ];
  if (worker.waiting_for) facts.push(["Waits for", worker.waiting_for]);
  if (worker.error) facts.push([`Error at ${clock(worker.error_time)}`, worker.error]);
  if (worker.drop_reason) facts.push(["Last drop", worker.drop_reason]);
  return facts;
}

class VariableView extends View {
  constructor(...all) {
    super(...all);
    const line = () => ({ color: theme().accent, dash: [] });
    this.chart("Mean staleness", () => this.job.history.variables.get(this.name)?.staleness, (value) => fixed(value), line);
    const staleness = numberColumn("Staleness", ({ value, gone }) => gone || fixed(value));
    const workers = [nameColumn("Worker", "worker", ({ name }) => name, ({ name }) => styleOf(this.job, name)), staleness];
    this._workers = this.table("Staleness by worker", new Table(`Staleness on ${this.name}`, workers));
    const shards = [
      numberColumn("Shard", ({ shard }) => String(shard)),
      numberColumn("Bytes", ({ nbytes }) => bytes(nbytes)),
      numberColumn("Version", ({ version }) => count(version)),
      numberColumn("In", ({ incoming }) => `${bytes(incoming)}/s`),
      numberColumn("Out", ({ outgoing }) => `${bytes(outgoing)}/s`),
    ];
    this._shards = this.table("Shards", new Table(`Shards of ${this.name}`, shards));
  }

  refresh() {
    const variable = this.job.variable(this.name);
    const { workers, variables, values } = this.job.staleness;
    const place = variables.indexOf(this.name);
    const cells = workers.map((name, line) => ({ name, gone: goneWord(this.job, name), value: values[line * variables.length + place] }));
    this._workers.update(place < 0 ? [] : cells, ({ name }) => name);
    if (!variable) {
      this.facts([["Variable", "not in this job"]]);
      return;
    }
    this.facts([
      ["Shape", shape(variable.shape)],
      ["Type", variable.dtype],
      ["Optimizer", updateRule(variable.optimizer)],
      ["Travels as", variable.table ? "rows" : "all of it"],
      ["Bytes", bytes(variable.nbytes.reduce((sum, one) => sum + one, 0))],
    ]);
    const rows = variable.shards.map((shard, at) => ({
      shard,
      nbytes: variable.nbytes[at],
      version: variable.versions[at],
      incoming: variable.in[at],
      outgoing: variable.out[at],
    }));
    this._shards.update(rows, ({ shard }) => shard);
  }
}
