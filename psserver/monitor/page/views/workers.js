/** The table of workers, and that of held and dropped pushes. */

import { clock, count, duration, fixed, number } from "../data/format.js";
import { stateOf } from "../data/job.js";
import { Card } from "./card.js";
import { styleOf } from "./curves.js";
import { element, setAttribute, setHidden, setText } from "../dom.js";
import { nameColumn, numberColumn, Table, textColumn } from "./table.js";

/** The state as a word with a mark. */
const stateColumn = {
  title: "State",
  cell: (cell) => {
    const [word, chief] = [element("span", { className: "state" }), element("span", { className: "tag", title: "does what is done once" }, "chief")];
    cell.append(word, " ", chief);
    return (worker) => {
      setText(word, stateOf(worker));
      setAttribute(word, "data-state", stateOf(worker));
      setHidden(chief, !worker.chief);
    };
  },
};

/** The time that is left of the lease, as a bar with its seconds. */
const leaseColumn = {
  title: "Lease",
  className: "number",
  cell: (cell) => (worker) => setText(cell, worker.lease_left === null ? "–" : duration(worker.lease_left)),
};

/** What a worker waits for, its last error, and why a push of it was dropped: a line each. */
const notesColumn = {
  title: "Waits for, last error, last drop",
  className: "notes",
  cell: (cell) => {
    const lines = ["waits", "error", "drop"].map((kind) => {
      const line = element("span", { className: kind, hidden: true });
      cell.append(line);
      return line;
    });
    return (worker) => {
      const texts = [
        worker.waiting_for && `waits ${worker.held ? `${duration(worker.held)} ` : ""}for ${worker.waiting_for}`,
        worker.error && `error at ${clock(worker.error_time)}: ${worker.error}`,
        worker.drop_reason && `dropped: ${worker.drop_reason}`,
      ];
      texts.forEach((text, place) => {
        setText(lines[place], text || "");
        setHidden(lines[place], !text);
      });
    };
  },
};

export class WorkersCard extends Card {
  constructor(job) {
    super("Workers", "full");
    this._job = job;
    const columns = [
      nameColumn("Worker", "worker", ({ name }) => name, ({ name }) => styleOf(job, name)),
      stateColumn,
      numberColumn("Steps", ({ steps }) => count(steps)),
      numberColumn("Steps/s", ({ steps_per_second: rate }) => fixed(rate)),
      numberColumn("Cost", ({ cost }) => number(cost, 4)),
      numberColumn("Staleness", ({ staleness }) => fixed(staleness)),
      numberColumn("Mean", ({ mean_staleness: mean }) => fixed(mean)),
      numberColumn("Epoch", ({ epoch }) => (epoch ? count(epoch) : "–")),
      leaseColumn,
      numberColumn("Life", ({ incarnation }) => count(incarnation)),
      textColumn("Transport", ({ transport }) => transport || "–"),
      textColumn("Encoding", ({ encoding }) => encoding || "–"),
      notesColumn,
    ];
    this._table = new Table("Workers", columns, { empty: "No worker has joined yet.", state: stateOf });
    this.body.append(this._table.node);
  }

  update() {
    this._table.update(this._job.latest.workers, ({ name }) => name);
  }
}

export class PushesCard extends Card {
  constructor(job) {
    super("Held and dropped pushes", "pushes");
    this._job = job;
    this._totals = element("p", { className: "note" });
    const columns = [
      nameColumn("Worker", "worker", ({ name }) => name),
      numberColumn("Held now", ({ held }) => (held ? duration(held) : "–")),
      numberColumn("Held in all", ({ waited }) => duration(waited)),
      numberColumn("Dropped", ({ dropped }) => count(dropped)),
      numberColumn("Clipped", ({ clipped }) => count(clipped)),
      textColumn("Reason", ({ waiting_for: waiting, drop_reason: dropped }) => (waiting ? `for ${waiting}` : dropped) || "–", "notes"),
    ];
    this._table = new Table("Held and dropped pushes", columns, { empty: "No push was held, dropped or clipped." });
    this.body.append(this._totals, this._table.node);
  }

  update() {
    const { latest } = this._job;
    const all = [
      ["dropped", latest.dropped],
      ["repeated and applied once", latest.repeated],
      ["incomplete", latest.half_pushes],
      ["given up at a restore", latest.lost_pushes],
    ];
    setText(this._totals, all.map(([what, pushes]) => `${count(pushes)} ${what}`).join(" · "));
    const concerned = latest.workers.filter(({ held, waited, dropped, clipped }) => held || waited > 0.05 || dropped || clipped);
    this._table.update(concerned, ({ name }) => name);
  }
}
