/** What has happened: events over time, and as a list, the newest first. */

import { clock, count } from "../data/format.js";
import { EventStrip } from "../charts/event_strip.js";
import { Card } from "./card.js";
import { element, setAttribute } from "../dom.js";
import { nameColumn, numberColumn, Table, textColumn } from "./table.js";

/** Events that the list shows. */
const SHOWN = 100;

/** The key of an event: nothing of it changes. */
const keyOf = ({ time, shard, kind, text }) => `${time} ${shard} ${kind} ${text}`;

/** A table of events. */
export function eventTable(caption) {
  const worker = nameColumn("Worker", "worker", (event) => event.worker ?? "");
  const columns = [
    textColumn("Time", ({ time }) => clock(time), "name"),
    textColumn("Kind", ({ kind }) => kind.replaceAll("_", " ")),
    textColumn("What happened", ({ text }) => text, "notes"),
    worker,
    numberColumn("Shard", ({ shard }) => String(shard ?? "–")),
    numberColumn("Step", ({ step }) => count(step)),
  ];
  const table = new Table(caption, columns, { empty: "Nothing yet.", state: ({ warning }) => (warning ? "warning" : null) });
  return { node: table.node, update: (events) => table.update(newest(events), keyOf) };
}

function newest(events) {
  const seen = new Set();
  return [...events].reverse().filter((event) => !seen.has(keyOf(event)) && seen.add(keyOf(event))).slice(0, SHOWN);
}

export class TimelineCard extends Card {
  constructor(job) {
    super("Timeline", "full", "what happened; a triangle is a warning");
    this._job = job;
    this._canvas = element("canvas", { role: "img", "aria-label": "Events over time; the list below has the same" });
    this._strip = new EventStrip(this._canvas, () => {
      const { history, events } = job;
      return { events, first: history.time[0] || 0, last: history.time[history.length - 1] || 1 };
    });
    this._table = eventTable("Events, the newest first");
    this.body.append(element("div", { className: "figure strip" }, this._canvas), this._table.node);
  }

  update() {
    this._strip.request();
    const last = this._job.events.at(-1);
    if (this._shown === last && this._count === this._job.events.length) return;
    this._shown = last;
    this._count = this._job.events.length;
    this._table.update(this._job.events);
    if (last) setAttribute(this._canvas, "aria-label", `Events over time; the last one: ${last.text}. The list below has all`);
  }
}
