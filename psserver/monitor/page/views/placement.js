/** Placement: the shards with the variables that lie on them, sized by bytes and colored by traffic. */

import { bytes, count, fixed, plural, shape, updateRule } from "../data/format.js";
import { fitted } from "../charts/canvas.js";
import { Chart } from "../charts/chart.js";
import { drawEmpty } from "../charts/axes.js";
import { css, shade, textOn, theme } from "../charts/colors.js";
import { treemap } from "../charts/treemap.js";
import { Card } from "./card.js";
import { element, KeyedList, linkTo, setAttribute, setHidden, setText } from "../dom.js";
import { nameColumn, numberColumn, Table, textColumn } from "./table.js";

/** A shard is called hot when its traffic is so many times the mean of all shards. */
const HOT = 1.5;
/** Pixels: the height of the shard with the most bytes, and the least one. */
const HIGHEST = 200;
const LOWEST = 56;

/** The parts of variables on a shard: {name, size, traffic, variable}. */
function partsOf(variables, shard) {
  const parts = [];
  for (const variable of variables) {
    variable.shards.forEach((one, place) => {
      if (one !== shard) return;
      const traffic = (variable.in[place] ?? 0) + (variable.out[place] ?? 0);
      parts.push({ name: variable.name, size: variable.nbytes[place] ?? 0, traffic, variable });
    });
  }
  return parts;
}

const trafficOf = (shard) => (shard.bytes_in_per_second ?? 0) + (shard.bytes_out_per_second ?? 0);

export class PlacementCard extends Card {
  constructor(job) {
    super("Placement", "full", "area: bytes with slots; color: traffic per second");
    this._job = job;
    this._most = 0;
    this._shards = element("ul", { className: "shards" });
    this._list = new KeyedList(this._shards, ({ shard }) => this._makeShard(shard));
    this._table = new Table("Variables by shard", [
      nameColumn("Variable", "variable", ({ name }) => name),
      numberColumn("Shard", ({ shard }) => String(shard)),
      textColumn("Shape", ({ variable }) => shape(variable.shape)),
      textColumn("Type", ({ variable }) => variable.dtype),
      numberColumn("Bytes", ({ size }) => bytes(size)),
      numberColumn("Traffic", ({ traffic }) => `${bytes(traffic)}/s`),
      textColumn("Optimizer", ({ variable }) => updateRule(variable.optimizer), "notes"),
    ]);
    this._table.node.hidden = true;
    const button = element("button", { type: "button", "aria-pressed": "false", "aria-label": "Placement as a table" }, "Table");
    button.addEventListener("click", () => {
      setHidden(this._table.node, !this._table.node.hidden);
      setHidden(this._shards, !this._table.node.hidden);
      setAttribute(button, "aria-pressed", String(!this._table.node.hidden));
      this.update();
    });
    this.controls.append(button);
    this.body.append(this._shards, this._table.node);
  }

  update() {
    const { shards, variables } = this._job.latest;
    if (!this._table.node.hidden) {
      const rows = shards.flatMap(({ shard }) => partsOf(variables, shard).map((part) => ({ ...part, shard })));
      this._table.update(rows, ({ name, shard }) => `${shard} ${name}`);
      return;
    }
    const parts = shards.map(({ shard }) => partsOf(variables, shard));
    this._most = Math.max(1, ...parts.flat().map(({ traffic }) => traffic));
    const largest = Math.max(1, ...shards.map(({ nbytes }) => nbytes ?? 0));
    const all = shards.map(trafficOf);
    const [busiest, mean] = [Math.max(1, ...all), all.reduce((sum, one) => sum + one, 0) / Math.max(1, all.length)];
    this._list.update(
      shards.map((shard, place) => {
        const traffic = all[place];
        const hot = shards.length > 1 && traffic > HOT * mean;
        return { ...shard, parts: parts[place], portion: (shard.nbytes ?? 0) / largest, share: traffic / busiest, hot };
      }),
      ({ shard, address }) => `${shard} ${address}`,
    );
  }

  _makeShard(number) {
    const [facts, hot, problem] = [element("p", { className: "note" }), element("b", { className: "hot" }, "hot"), element("p", { className: "problem" })];
    const bar = element("i");
    const name = element("h3", {}, `Shard ${number} `, hot);
    const canvas = element("canvas", { role: "img" });
    const node = element("li", {}, name, facts, element("div", { className: "bar" }, bar), element("div", { className: "figure" }, canvas), problem);
    const map = new ShardMap(canvas, () => this._most);
    return {
      node,
      update: (shard) => {
        const [incoming, outgoing] = [bytes(shard.bytes_in_per_second), bytes(shard.bytes_out_per_second)];
        const where = shard.problem ? shard.address : `${bytes(shard.nbytes)} · in ${incoming}/s · out ${outgoing}/s · ${fixed(shard.pushes_per_second)} pushes/s`;
        setText(facts, where);
        facts.title = `${shard.address}, step ${count(shard.step)}`;
        setHidden(hot, !shard.hot);
        setText(problem, shard.problem ? `No answer: ${shard.problem}` : "");
        setHidden(problem, !shard.problem);
        const width = `${(100 * shard.share).toFixed(1)}%`;
        if (bar.style.width !== width) bar.style.width = width;
        map.parts = shard.parts;
        const height = `${Math.round(Math.max(LOWEST, HIGHEST * shard.portion))}px`; // areas of shards compare too
        if (canvas.style.height !== height) canvas.style.height = height;
        map.drawing.request();
        const largest = shard.parts.reduce((most, part) => (part.traffic > (most?.traffic ?? -1) ? part : most), null);
        const most = largest ? `; most traffic: ${largest.name}, ${bytes(largest.traffic)} per second` : "";
        setAttribute(canvas, "aria-label", `Shard ${number}: ${plural(shard.parts.length, "variable")}, ${bytes(shard.nbytes)}${most}`);
      },
    };
  }
}

/** The treemap of a shard. */
class ShardMap extends Chart {
  constructor(canvas, most) {
    super(canvas);
    this.parts = [];
    this._most = most;
    canvas.addEventListener("click", () => {
      if (this._under) location.hash = linkTo("variable", this._under.name);
    });
  }

  _draw(context, width, height) {
    const { traffic: colors, font, surface, text } = theme();
    this._under = null;
    let box = null;
    if (!this.parts.length) drawEmpty(context, "no variables yet");
    context.font = `11px ${font}`;
    context.textBaseline = "top";
    context.textAlign = "left";
    for (const { item, left, top, width: wide, height: high } of treemap(this.parts, 0, 0, width, height)) {
      const color = shade(colors, Math.sqrt(item.traffic / this._most()));
      context.fillStyle = css(color);
      context.fillRect(left, top, wide, high);
      context.strokeStyle = surface;
      context.lineWidth = 1;
      context.strokeRect(left, top, wide, high);
      if (wide > 30 && high > 16) {
        context.fillStyle = textOn(color);
        context.fillText(fitted(context, item.name, wide - 10), left + 6, top + 5);
        if (high > 34) {
          context.globalAlpha = 0.8;
          context.fillText(fitted(context, `${bytes(item.size)} · ${bytes(item.traffic)}/s`, wide - 10), left + 6, top + 19);
          context.globalAlpha = 1;
        }
      }
      const { x, y } = this._pointer ?? {};
      if (x >= left && x < left + wide && y >= top && y < top + high) {
        this._under = item;
        box = [left, top, wide, high];
      }
    }
    this.drawing.canvas.style.cursor = box ? "pointer" : "";
    if (!box) {
      this._reading.hide();
      return;
    }
    const [left, top, wide, high] = box;
    context.strokeStyle = text;
    context.lineWidth = 1.5;
    context.strokeRect(left + 1, top + 1, wide - 2, high - 2);
    const { name, size, traffic } = this._under;
    const lines = [{ name: "bytes", text: bytes(size) }, { name: "traffic", text: `${bytes(traffic)}/s` }];
    this._reading.show(this._pointer.x, name, lines, this._pointer.y + 14);
  }
}
