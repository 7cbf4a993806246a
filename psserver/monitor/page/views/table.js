/** Tables whose rows stay and whose cells change. */

import { element, KeyedList, linkTo, setAttribute, setHidden, setText } from "../dom.js";

/** A column of text: `text(row)`. */
export function textColumn(title, text, className = "") {
  return {
    title,
    className,
    cell: (cell) => (row) => setText(cell, text(row)),
  };
}

/** A column of numbers, at the right: `text(row)`. */
export function numberColumn(title, text) {
  return textColumn(title, text, "number");
}

/** A column of names that lead to the curves of a worker or a variable; `swatch(row)` is the color beside the name. */
export function nameColumn(title, kind, name, swatch = null) {
  return {
    title,
    className: "name",
    cell: (cell) => {
      const key = element("i", { className: "key", hidden: swatch === null });
      const link = element("a");
      cell.append(key, link);
      return (row) => {
        const text = name(row);
        setText(link, text);
        setAttribute(link, "href", linkTo(kind, text));
        if (swatch) paint(key, swatch(row));
      };
    },
  };
}

/** Gives a key the color and the dashes of a line. */
export function paint(key, { color, dash }) {
  const dashed = dash.length ? `repeating-linear-gradient(90deg, ${color} 0 4px, transparent 4px 6px)` : color;
  if (key.dataset.paint !== dashed) {
    key.dataset.paint = dashed;
    key.style.background = dashed;
  }
}

export class Table {
  /**
   * A table in a region that scrolls by itself. The first column has the headers of the rows; `empty` is the sentence in
   * place of no rows; `state(row)` becomes the row's `data-state`.
   */
  constructor(caption, columns, { empty = "none", state = null } = {}) {
    const heads = columns.map(({ title, className = "" }) => element("th", { scope: "col", className }, title));
    const body = element("tbody");
    this.table = element("table", {}, element("caption", {}, caption), element("thead", {}, element("tr", {}, ...heads)), body);
    this._empty = element("p", { className: "empty" }, empty);
    this._region = element("div", { className: "scroll", role: "region", tabIndex: 0, "aria-label": caption }, this.table);
    this.node = element("div", {}, this._region, this._empty);
    this._rows = new KeyedList(body, () => {
      const cells = columns.map(({ className = "" }, place) =>
        place ? element("td", { className }) : element("th", { scope: "row", className }),
      );
      const updates = cells.map((cell, place) => columns[place].cell(cell));
      const node = element("tr", {}, ...cells);
      return {
        node,
        update: (row) => {
          if (state) setAttribute(node, "data-state", state(row));
          for (const update of updates) update(row);
        },
      };
    });
  }

  /** Shows rows, by keys that differ. */
  update(rows, keyOf) {
    setHidden(this._region, rows.length === 0);
    setHidden(this._empty, rows.length > 0);
    this._rows.update(rows, keyOf);
  }
}
