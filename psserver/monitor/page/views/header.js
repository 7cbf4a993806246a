/** The top of the page: the job, whether its samples arrive, the choice of colors, and the most important figures. */

import { bytes, count, duration, fixed, number, plural } from "../data/format.js";
import { forgetTheme } from "../charts/colors.js";
import { choice } from "./card.js";
import { element, setAttribute, setHidden, setText } from "../dom.js";

const STORED = "paramserver-theme";

/** The choice of light or dark, which is kept; `onChange()` when the colors have changed. */
export function themeChoice(onChange) {
  const root = document.documentElement;
  const apply = (value) => {
    if (value === "auto") delete root.dataset.theme;
    else root.dataset.theme = value;
    forgetTheme();
    onChange();
  };
  const stored = localStorage.getItem(STORED) ?? "auto";
  const { node } = choice("Colors", { auto: "Auto", light: "Light", dark: "Dark" }, stored, (value) => {
    localStorage.setItem(STORED, value);
    apply(value);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(localStorage.getItem(STORED) ?? "auto"));
  apply(stored);
  return node;
}

/** The figures: a name, the text, and what is said in small type below. */
const FIGURES = [
  ["Step", ({ latest }) => count(latest.step), ({ latest }) => policyOf(latest)],
  ["Steps/s", ({ history }) => fixed(history.rate[history.length - 1]), ({ latest }) => perWorker(latest)],
  ["Cost", ({ latest }) => number(meanCost(latest)), () => "mean of live workers"],
  ["Staleness", ({ history }) => count(history.p50[history.length - 1]), ({ history }) => `median; p99 ${count(history.p99[history.length - 1])}`],
  ["Workers", ({ latest }) => count(live(latest).length), ({ latest }) => othersOf(latest)],
  ["Held", ({ latest }) => count(latest.workers.filter(({ held }) => held > 0).length), ({ latest }) => `pushes; ${count(latest.dropped)} dropped`],
  ["Variables", ({ latest }) => bytes(latest.nbytes), ({ latest }) => `${count(latest.variables.length)} on ${plural(latest.shards.length, "shard")}`],
];

const live = (sample) => sample.workers.filter(({ state }) => state === "live");

function policyOf({ consistency, handling }) {
  return handling && handling !== "none" ? `${consistency}, ${handling}` : consistency;
}

function perWorker(sample) {
  const rates = live(sample).map((worker) => worker.steps_per_second ?? 0);
  return rates.length ? `${fixed(Math.min(...rates))} to ${fixed(Math.max(...rates))} a worker` : "no worker";
}

function meanCost(sample) {
  const costs = live(sample).map(({ cost }) => cost).filter((cost) => cost !== null && cost !== undefined);
  return costs.length ? costs.reduce((sum, cost) => sum + cost, 0) / costs.length : null;
}

function othersOf(sample) {
  const states = new Map();
  for (const { state } of sample.workers) if (state !== "live") states.set(state, (states.get(state) ?? 0) + 1);
  return ["live", ...[...states].map(([state, workers]) => `${count(workers)} ${state}`)].join(", ");
}

export class Header {
  constructor(banner, figures, onTheme) {
    this._job = element("p", { className: "job" });
    this._live = element("p", { className: "connection" }, element("i"), element("span"));
    banner.append(element("h1", {}, "paramserver"), this._job, this._live, themeChoice(onTheme));
    this._figures = FIGURES.map(([name, text, small]) => {
      const [value, note] = [element("dd", { className: "value" }), element("dd", { className: "small" })];
      figures.append(element("div", {}, element("dt", {}, name), value, note));
      return (job) => {
        setText(value, text(job));
        setText(note, small(job));
      };
    });
  }

  update(job) {
    const { job: running, stopped } = job.latest;
    const name = running?.number ? `job ${running.number}${running.name ? ` (${running.name})` : ""}` : "no job yet";
    setText(this._job, `${name} · ${stopped ? `stopped: ${stopped}` : (running?.state ?? "no server answers")}`);
    const title = `${running?.name || name} · paramserver`;
    if (document.title !== title) document.title = title;
    for (const update of this._figures) update(job);
  }

  /** Says whether samples arrive. */
  connection({ live: alive, seconds }) {
    const [, text] = this._live.children;
    setAttribute(this._live, "data-live", String(alive));
    setText(text, alive ? "live" : `no data since ${duration(seconds)}`);
  }
}

/** The sentence of a stream that is silent, above all else. */
export class SilentNotice {
  constructor(parent) {
    this._since = element("span", { "aria-hidden": "true" }); // is not read aloud each second
    this._reason = element("span");
    this.node = element("p", { className: "notice", role: "status", hidden: true }, "No data", this._since, this._reason);
    parent.append(this.node);
  }

  update({ live: alive, seconds, reason }) {
    setHidden(this.node, alive);
    document.body.classList.toggle("stale", !alive);
    if (alive) return;
    setText(this._since, ` since ${duration(Math.round(seconds))}`);
    setText(this._reason, `: ${reason}.`);
  }
}
