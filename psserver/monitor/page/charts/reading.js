/** The values at the pointer, in a box beside it. */

import { element, setText } from "../dom.js";

/** Lines that are shown; others are counted. */
const MAX_LINES = 12;

export class Reading {
  /** `onMove(x, y)` gets the place of the pointer in the canvas, and null twice when it has left. */
  constructor(canvas, onMove) {
    this._canvas = canvas;
    this._box = element("div", { className: "reading", hidden: true });
    this._box.setAttribute("aria-hidden", "true");
    this._ends = new AbortController();
    canvas.after(this._box);
    const options = { signal: this._ends.signal, passive: true };
    const move = (event) => {
      const { left, top } = canvas.getBoundingClientRect();
      onMove(event.clientX - left, event.clientY - top);
    };
    canvas.addEventListener("pointermove", move, options);
    canvas.addEventListener("pointerdown", move, options);
    canvas.addEventListener("pointerleave", () => onMove(null, null), options);
  }

  close() {
    this._ends.abort();
    this._box.remove();
  }

  hide() {
    this._box.hidden = true;
  }

  /** Shows a title and lines {name, text, color, dash} beside `x`; at the height `y`, or at the top. */
  show(x, title, lines, y = 8) {
    const more = lines.length - MAX_LINES;
    const wanted = [title, ...lines.slice(0, MAX_LINES), ...(more > 0 ? [`and ${more} more`] : [])];
    while (this._box.children.length > wanted.length) this._box.lastChild.remove();
    while (this._box.children.length < wanted.length) {
      this._box.append(element("div", {}, element("i", { className: "key" }), element("span"), element("b")));
    }
    wanted.forEach((line, place) => {
      const [key, name, value] = this._box.children[place].children;
      const plain = typeof line === "string";
      key.hidden = plain || !line.color;
      if (!key.hidden) key.style.backgroundColor = line.color;
      setText(name, plain ? line : line.name);
      setText(value, plain ? "" : line.text);
    });
    this._box.hidden = false;
    const { offsetLeft, offsetTop, clientWidth, clientHeight } = this._canvas;
    const { offsetWidth, offsetHeight } = this._box;
    const beside = x + 14 + offsetWidth > clientWidth ? x - 14 - offsetWidth : x + 14;
    this._box.style.left = `${offsetLeft + Math.max(0, beside)}px`;
    this._box.style.top = `${offsetTop + Math.max(0, Math.min(y, clientHeight - offsetHeight))}px`;
  }
}
