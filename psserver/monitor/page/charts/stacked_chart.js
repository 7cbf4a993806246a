/** Areas on top of each other over time, one a series: their upper edge is the sum. */

import { theme } from "./colors.js";
import { Chart } from "./chart.js";
import { drawAxes, scale } from "./axes.js";
import { nearest } from "./line_chart.js";
import { number } from "../data/format.js";

const MARGIN = { left: 46, right: 12, top: 10, bottom: 26 };

export class StackedChart extends Chart {
  /** `describe()` gives {length, x, series, title}: as in LineChart; over time. */
  constructor(canvas, describe) {
    super(canvas);
    this._describe = describe;
    this._sums = new Float64Array(0);
  }

  _draw(context, width, height) {
    const { length, x: times, series, title } = this._describe();
    const area = { ...MARGIN, right: width - MARGIN.right, bottom: height - MARGIN.bottom };
    if (this._sums.length < times.length) this._sums = new Float64Array(times.length);
    const sums = this._sums.fill(0);
    for (const { y } of series) for (let at = 0; at < length; at += 1) sums[at] += y[at] || 0;
    let most = 0;
    for (let at = 0; at < length; at += 1) most = Math.max(most, sums[at]);
    const [first, last] = [times[0] ?? 0, times[Math.max(0, length - 1)] ?? 1];
    const wanted = Math.max(2, Math.floor((area.right - area.left) / 110));
    const x = scale("time", first, last > first ? last : first + 1, area.left, area.right, wanted);
    const y = scale("linear", 0, most * 1.08 || 1, area.bottom, area.top, Math.max(2, Math.floor(height / 50)));
    drawAxes(context, area, x, y);
    if (!length) return;
    const every = Math.max(1, Math.floor((length * 1.5) / (area.right - area.left)));
    // from the sum down: each area covers the lower part of the one before
    const edge = sums.slice(0, length);
    for (const one of [...series].reverse()) {
      this._fill(context, one.color, edge, times, length, every, x, y);
      for (let at = 0; at < length; at += 1) edge[at] -= one.y[at] || 0;
    }
    this._line(context, sums, times, length, every, x, y);
    this._read(context, { length, times, series, title, sums }, x, area);
  }

  _fill(context, color, edge, times, length, every, x, y) {
    context.beginPath();
    context.moveTo(x.place(times[length - 1]), y.place(0));
    context.lineTo(x.place(times[(length - 1) % every]), y.place(0));
    for (let at = (length - 1) % every; at < length; at += every) {
      context.lineTo(x.place(times[at]), y.place(Math.max(0, edge[at])));
    }
    context.closePath();
    context.fillStyle = theme().surface;
    context.fill();
    context.globalAlpha = 0.6;
    context.fillStyle = color;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = theme().surface;
    context.lineWidth = 1;
    context.stroke();
  }

  _line(context, sums, times, length, every, x, y) {
    context.strokeStyle = theme().text;
    context.lineWidth = 1.25;
    context.beginPath();
    for (let at = (length - 1) % every; at < length; at += every) context.lineTo(x.place(times[at]), y.place(sums[at]));
    context.stroke();
  }

  _read(context, { length, times, series, title, sums }, x, area) {
    if (this._pointer === null) {
      this._reading.hide();
      return;
    }
    const at = nearest(times, length, x.value(Math.max(area.left, Math.min(area.right, this._pointer.x))));
    const pixel = Math.round(x.place(times[at])) + 0.5;
    context.strokeStyle = theme().text;
    context.beginPath();
    context.moveTo(pixel, area.top);
    context.lineTo(pixel, area.bottom);
    context.stroke();
    const known = series.filter((one) => one.y[at] > 0).reverse();
    const lines = known.map(({ name, color, y }) => ({ name, color, text: number(y[at]) }));
    this._reading.show(pixel, title(at), [{ name: "all", text: number(sums[at]) }, ...lines]);
  }
}
