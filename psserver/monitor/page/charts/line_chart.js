/**
 * Lines over steps or over time, one a series, with a reading of the values at the pointer. More points than pixels are
 * drawn as one point a pixel or two.
 */

import { theme } from "./colors.js";
import { Chart } from "./chart.js";
import { drawAxes, drawEmpty, scale } from "./axes.js";

/** Segments of all lines together: those of many workers have fewer points. */
const MOST_SEGMENTS = 8000;
const MARGIN = { left: 52, right: 12, top: 10, bottom: 26 };

export class LineChart extends Chart {
  /**
   * `describe()` gives what is drawn: {length, x, xKind, yKind, format, series, marks}. `x` has the values of the axis,
   * of which the first `length` count; a series is {name, y, color, dash, width}; `marks` are places on the x axis, such
   * as those of events: {at, color}. `shade(name)` of `highlight` is drawn over the others.
   */
  constructor(canvas, describe) {
    super(canvas);
    this._describe = describe;
    this.highlight = null;
  }

  _draw(context, width, height) {
    const chart = this._describe();
    const { length, x: places, series, yKind } = chart;
    const area = { ...MARGIN, right: width - MARGIN.right, bottom: height - MARGIN.bottom };
    const found = range(series, length, yKind);
    if (!found) {
      drawEmpty(context, "no pushes yet");
      return;
    }
    const [low, high] = found;
    const wanted = Math.max(2, Math.floor((area.right - area.left) / 110));
    const [first, last] = [places[0] ?? 0, places[Math.max(0, length - 1)] ?? 1];
    const x = scale(chart.xKind, first, last > first ? last : first + 1, area.left, area.right, wanted);
    const y = scale(yKind, low, high, area.bottom, area.top, Math.max(2, Math.floor((area.bottom - area.top) / 40)));
    drawAxes(context, area, x, { ...y, label: chart.format });
    context.save();
    context.beginPath();
    context.rect(area.left, area.top - 2, area.right - area.left, area.bottom - area.top + 4);
    context.clip();
    this._drawMarks(context, chart.marks ?? [], x, area);
    const points = Math.min(area.right - area.left, Math.max(MOST_SEGMENTS / (series.length || 1), 100));
    const every = Math.max(1, Math.ceil(length / points));
    const ordered = [...series].sort((one, other) => (one.name === this.highlight) - (other.name === this.highlight));
    for (const one of ordered) this._drawLine(context, one, places, length, every, x, y);
    context.restore();
    this._read(context, chart, x, y, area);
  }

  _drawLine(context, { y: values, name, color, dash, width = 1.5 }, places, length, every, x, y) {
    const faded = this.highlight !== null && this.highlight !== name;
    context.globalAlpha = faded ? 0.18 : 1;
    context.strokeStyle = color;
    context.setLineDash(dash ?? []);
    context.lineWidth = name === this.highlight ? width + 1 : width;
    context.lineJoin = "round";
    context.beginPath();
    let open = false;
    let lastAt = -1;
    for (let at = (length - 1) % every; at < length; at += every) {
      const value = values[at];
      if (Number.isNaN(value)) {
        // a gap of some points is bridged: a slow worker pushes less often than there are samples
        if (at - lastAt > 8 * every) open = false;
        continue;
      }
      if (open) context.lineTo(x.place(places[at]), y.place(value));
      else context.moveTo(x.place(places[at]), y.place(value));
      open = true;
      lastAt = at;
    }
    context.stroke();
    context.setLineDash([]);
    context.globalAlpha = 1;
  }

  _drawMarks(context, marks, x, area) {
    for (const { at, color } of marks) {
      const pixel = Math.round(x.place(at)) + 0.5;
      if (!(pixel >= area.left && pixel <= area.right)) continue;
      context.strokeStyle = color;
      context.globalAlpha = 0.7;
      context.setLineDash([2, 3]);
      context.beginPath();
      context.moveTo(pixel, area.top);
      context.lineTo(pixel, area.bottom);
      context.stroke();
      context.setLineDash([]);
      context.globalAlpha = 1;
    }
  }

  _read(context, chart, x, y, area) {
    if (this._pointer === null) {
      this._reading.hide();
      return;
    }
    const at = nearest(chart.x, chart.length, x.value(Math.max(area.left, Math.min(area.right, this._pointer.x))));
    const pixel = x.place(chart.x[at]);
    context.strokeStyle = theme().muted;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(Math.round(pixel) + 0.5, area.top);
    context.lineTo(Math.round(pixel) + 0.5, area.bottom);
    context.stroke();
    const known = chart.series.filter((one) => !Number.isNaN(one.y[at]));
    for (const { y: values, color } of known) {
      context.fillStyle = color;
      context.beginPath();
      context.arc(pixel, y.place(values[at]), 3, 0, 2 * Math.PI);
      context.fill();
    }
    known.sort((one, other) => other.y[at] - one.y[at]);
    const lines = known.map(({ name, color, dash, y: values }) => ({ name, color, dash, text: chart.format(values[at]) }));
    this._reading.show(pixel, chart.title(at), lines);
  }
}

/** The lowest and highest value, with room; from zero unless the scale is logarithmic. `null`: there is no value. */
function range(series, length, kind) {
  let [low, high] = [Infinity, -Infinity];
  for (const { y } of series) {
    for (let at = 0; at < length; at += 1) {
      const value = y[at];
      if (value < low && (kind !== "log" || value > 0)) low = value;
      if (value > high && value !== Infinity) high = value;
    }
  }
  if (!(high >= low)) return null;
  if (kind === "log") return [low / 1.1, high > low ? high * 1.1 : low * 2];
  low = Math.min(0, low);
  return [low, high > low ? high + 0.05 * (high - low) : low + 1];
}

/** The place of the value that is nearest to `wanted` among the first `length`, which ascend. */
export function nearest(values, length, wanted) {
  let [low, high] = [0, length - 1];
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle;
    else high = middle;
  }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : Math.max(0, high);
}
