/** Epochs and blocks of the data queues; minimizations; checkpoints, journal and timeline of the shards. */

import { bytes, count, duration, number } from "../data/format.js";
import { Card } from "./card.js";
import { element, setAttribute, setHidden, setText } from "../dom.js";
import { numberColumn, Table, textColumn } from "./table.js";

/** Positions of all epochs up to the end of a queue; 0: it has no end. */
function totalOf({ size, epochs, limit }) {
  const ends = [size * epochs, limit].filter((end) => end > 0);
  return ends.length ? Math.min(...ends) : 0;
}

/** How far a queue is, as a bar and in percent. */
const progressColumn = {
  title: "Done",
  className: "number",
  cell: (cell) => {
    const [bar, text] = [element("progress", { max: 1 }), element("span")];
    cell.append(bar, text);
    return (queue) => {
      const total = totalOf(queue);
      const share = total ? Math.min(1, queue.done / total) : 0;
      bar.hidden = !total;
      if (bar.value !== share) bar.value = share;
      setAttribute(bar, "aria-label", `${queue.name}: ${number(100 * share)} %`);
      setText(text, total ? ` ${Math.floor(100 * share)} %` : count(queue.done));
    };
  },
};

export class QueuesCard extends Card {
  constructor(job) {
    super("Epochs and blocks", "queues");
    this._job = job;
    const columns = [
      textColumn("Queue", ({ name }) => name, "name"),
      numberColumn("Epoch", ({ epoch, epochs }) => (epochs ? `${count(epoch)} of ${count(epochs)}` : count(epoch))),
      progressColumn,
      numberColumn("Blocks out", ({ blocks_out: out }) => count(out)),
    ];
    this._table = new Table("Data queues", columns, { empty: "No data queue: workers read their own batches." });
    this.body.append(this._table.node);
  }

  update() {
    this._table.update(this._job.latest.queues, ({ name }) => name);
  }
}

export class MinimizationsCard extends Card {
  constructor(job) {
    super("Minimizations", "full");
    this._job = job;
    const columns = [
      textColumn("Minimization", ({ name, over }) => (over ? `${name} (over)` : name), "name"),
      numberColumn("Iteration", ({ point }) => count(point?.iterations)),
      numberColumn("Loss", ({ point }) => number(point?.loss, 6)),
      numberColumn("Gradient", ({ point }) => number(point?.gradient)),
      numberColumn("Step", ({ point }) => number(point?.step)),
      numberColumn("Evaluations", ({ point }) => count(point?.evaluations)),
      numberColumn("Portions", ({ over, counted, portions }) => (over ? "–" : `${count(counted)} of ${count(portions)}`)),
      numberColumn("Backups", ({ backups, backups_won: won }) => (backups ? `${count(backups)}, ${count(won)} first` : "0")),
    ];
    this._table = new Table("Minimizations", columns);
    this.body.append(this._table.node);
  }

  update() {
    const all = this._job.latest.minimizations;
    setHidden(this.node, all.length === 0);
    this._table.update(all, ({ name }) => name);
  }
}

export class StorageCard extends Card {
  constructor(job) {
    super("Checkpoints and journal", "storage");
    this._job = job;
    const columns = [
      textColumn("Shard", ({ shard }) => String(shard), "name"),
      textColumn("Checkpoints", ({ storage }) => checkpointsOf(storage), "notes"),
      numberColumn("Journal", ({ storage }) => (storage.journal ? bytes(storage.journal_bytes) : "off")),
      numberColumn("Timeline", ({ storage }) => count(storage.timeline)),
    ];
    this._table = new Table("Checkpoints and journal", columns, { empty: "Nothing is kept: --checkpoint-dir or --run-dir writes checkpoints." });
    this.body.append(this._table.node);
  }

  update() {
    const kept = this._job.latest.shards.filter(({ storage }) => storage?.folder);
    this._table.update(kept, ({ shard }) => shard);
  }
}

function checkpointsOf({ last, age, writing, waiting_for: waiting, problem }) {
  const written = last ? `${count(last)}, ${duration(age)} ago` : "none yet";
  const progress = writing ? `; ${count(writing)} ${waiting ? `waits for ${waiting}` : "is being written"}` : "";
  return `${written}${progress}${problem ? `; problem: ${problem}` : ""}`;
}
