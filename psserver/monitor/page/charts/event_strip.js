/** Events as marks over time, in a lane for each kind of thing that they are about. Warnings are triangles. */

import { clock } from "../data/format.js";
import { drawAxes, scale } from "./axes.js";
import { Chart } from "./chart.js";
import { theme } from "./colors.js";

/** The kinds of events of each lane; all others are in the last one. */
const LANES = [
  ["workers", new Set(["joined", "left", "lost", "stalled", "resumed", "chief"])],
  ["job", new Set(["job", "stopped", "epoch", "block"])],
  ["storage", new Set(["checkpoint", "cut", "restored", "lost_pushes"])],
  ["other", new Set()],
];
const MARGIN = { left: 66, right: 12, top: 6, bottom: 26 };

function laneOf(event) {
  const lane = LANES.findIndex(([, kinds]) => kinds.has(event.kind));
  return lane < 0 ? LANES.length - 1 : lane;
}

export class EventStrip extends Chart {
  /** `describe()` gives {events, first, last}: the events, and the times of the left and right edge. */
  constructor(canvas, describe) {
    super(canvas);
    this._describe = describe;
  }

  _draw(context, width, height) {
    const { events, first, last } = this._describe();
    const area = { ...MARGIN, right: width - MARGIN.right, bottom: height - MARGIN.bottom };
    const lane = (area.bottom - area.top) / LANES.length;
    const wanted = Math.max(2, Math.floor((area.right - area.left) / 110));
    const x = scale("time", first, last > first ? last : first + 1, area.left, area.right, wanted);
    drawAxes(context, area, x, null);
    const { muted, grid, accent, warning, surface } = theme();
    context.textAlign = "right";
    context.textBaseline = "middle";
    LANES.forEach(([name], place) => {
      const y = Math.round(area.top + (place + 0.5) * lane) + 0.5;
      context.fillStyle = muted;
      context.fillText(name, area.left - 10, y);
      context.strokeStyle = grid;
      context.beginPath();
      context.moveTo(area.left, y);
      context.lineTo(area.right, y);
      context.stroke();
    });
    context.strokeStyle = surface;
    context.lineWidth = 1;
    let closest = null;
    for (const event of events) {
      if (event.time < first) continue;
      const [at, y] = [x.place(event.time), area.top + (laneOf(event) + 0.5) * lane];
      context.fillStyle = event.warning ? warning : accent;
      context.beginPath();
      if (event.warning) {
        context.moveTo(at, y - 6);
        context.lineTo(at + 6, y + 5);
        context.lineTo(at - 6, y + 5);
        context.closePath();
      } else context.arc(at, y, 3.5, 0, 2 * Math.PI);
      context.fill();
      context.stroke();
      if (!this._pointer) continue;
      const far = Math.hypot(at - this._pointer.x, y - this._pointer.y);
      if (far < (closest?.far ?? 14)) closest = { far, at, y, event };
    }
    if (!closest) this._reading.hide();
    else {
      const { event, at, y } = closest;
      this._reading.show(at, `${clock(event.time)} ${event.kind}`, [{ name: event.text, text: "" }], y + 10);
    }
  }
}
