/** A part of the page: a heading, controls beside it, and a chart that can also be read as a table. */

import { element, setAttribute, setHidden } from "../dom.js";

/** Seconds between two changes of the text of a chart, which screen readers may read again. */
const SUMMARY_SECONDS = 5;
let cards = 0;

/** A group of buttons of which one is chosen: `onChoose(value)`; returns {node, choose}. */
export function choice(label, options, chosen, onChoose) {
  const buttons = Object.entries(options).map(([value, text]) => {
    const button = element("button", { type: "button", "aria-pressed": String(value === chosen) }, text);
    button.addEventListener("click", () => {
      choose(value);
      onChoose(value);
    });
    return [value, button];
  });
  const choose = (value) => buttons.forEach(([one, button]) => setAttribute(button, "aria-pressed", String(one === value)));
  return { node: element("div", { className: "choice", role: "group", "aria-label": label }, ...buttons.map(([, one]) => one)), choose };
}

export class Card {
  /** A section with a heading; `className` says how wide it is, `note` what is shown in a few words. */
  constructor(title, className, note = "") {
    cards += 1;
    const id = `part-${cards}`;
    this.controls = element("div", { className: "controls" });
    const heading = element("h2", { id }, title);
    this.head = element("header", {}, heading, element("p", { className: "note" }, note), this.controls);
    this.body = element("div", { className: "body" });
    this.node = element("section", { className: `card ${className}`, "aria-labelledby": id }, this.head, this.body);
  }
}

export class ChartCard extends Card {
  /**
   * `summary()` is the text of the chart for those who do not see it. `table` has the same as a table: an object with a
   * `node`, which `fillTable()` updates while it is shown.
   */
  constructor(title, className, note, summary, table, fillTable) {
    super(title, className, note);
    this.canvas = element("canvas", { role: "img", "aria-label": title });
    this.figure = element("div", { className: "figure" }, this.canvas);
    this._summary = summary;
    this._told = -Infinity;
    this._fillTable = fillTable;
    this._table = table.node;
    this._table.hidden = true;
    this._button = element("button", { type: "button", className: "as-table", "aria-pressed": "false" }, "Table");
    this._button.setAttribute("aria-label", `${title} as a table`);
    this._button.addEventListener("click", () => this._toggle());
    this.controls.append(this._button);
    this.body.append(this.figure, this._table);
  }

  /** Draws the chart, or fills the table. */
  update() {
    if (!this._table.hidden) this._fillTable();
    else this.chart.request();
    if (performance.now() - this._told > 1000 * SUMMARY_SECONDS) {
      this._told = performance.now();
      setAttribute(this.canvas, "aria-label", this._summary());
    }
  }

  _toggle() {
    const asTable = this._table.hidden;
    setAttribute(this._button, "aria-pressed", String(asTable));
    setHidden(this._table, !asTable);
    setHidden(this.figure, asTable);
    this.update();
  }
}
