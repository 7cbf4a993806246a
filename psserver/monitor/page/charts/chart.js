/** What all charts with a reading have: the canvas, the place of the pointer, and the box with the values there. */

import { Drawing } from "./canvas.js";
import { Reading } from "./reading.js";

/** Subclasses have `_draw(context, width, height)`, as of `Drawing`. */
export class Chart {
  constructor(canvas) {
    this._pointer = null; // {x, y} in the canvas; null: it is elsewhere
    this.drawing = new Drawing(canvas, (...all) => this._draw(...all));
    this._reading = new Reading(canvas, (x, y) => {
      this._pointer = x === null ? null : { x, y };
      this.drawing.request();
    });
  }

  request() {
    this.drawing.request();
  }

  close() {
    this.drawing.close();
    this._reading.close();
  }
}
