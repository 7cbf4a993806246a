/**
 * The distribution of staleness: over time as a field, whose columns are times and whose rows are bands of staleness, with
 * median and 99th percentile as lines; and now as bars at its right, on the same rows.
 */

import { BANDS, bandName, bandOf } from "../data/history.js";
import { number } from "../data/format.js";
import { css, shade, theme } from "./colors.js";
import { Chart } from "./chart.js";
import { drawAxes, drawEmpty, scale } from "./axes.js";
import { nearest } from "./line_chart.js";

const MARGIN = { left: 62, top: 22, bottom: 26 };

/** The shares of all pushes by band over the points from `first`. */
export function distribution(history, first) {
  const shares = new Float64Array(BANDS.length);
  let all = 0;
  for (let at = Math.max(0, first); at < history.length; at += 1) {
    for (let band = 0; band < BANDS.length; band += 1) {
      const pushes = history.bands[at * BANDS.length + band];
      shares[band] += pushes;
      all += pushes;
    }
  }
  return all ? shares.map((pushes) => pushes / all) : shares;
}

/** The place of the first point of the last so many seconds. */
export function since(history, seconds) {
  const end = history.time[history.length - 1];
  let first = history.length - 1;
  while (first > 0 && history.time[first - 1] >= end - seconds) first -= 1;
  return first;
}

export class StalenessChart extends Chart {
  /** `history()` gives the history of the job; `seconds` is what "now" means. */
  constructor(canvas, history, seconds) {
    super(canvas);
    this._history = history;
    this._seconds = seconds;
    this._field = document.createElement("canvas");
  }

  _draw(context, width, height) {
    const history = this._history();
    if (!history.bands.some(Boolean)) {
      drawEmpty(context, "no pushes yet");
      return;
    }
    const now = distribution(history, since(history, this._seconds));
    const bars = Math.max(64, Math.min(150, width * 0.26));
    const area = { ...MARGIN, right: width - bars - 14, bottom: height - MARGIN.bottom };
    const rows = this._rows(history);
    area.row = (area.bottom - area.top) / rows;
    const times = history.time;
    const [first, last] = [times[0] || 0, times[Math.max(0, history.length - 1)] || 1];
    const wanted = Math.max(2, Math.floor((area.right - area.left) / 90));
    const x = scale("time", first, last > first ? last : first + 1, area.left, area.right, wanted);
    drawAxes(context, area, x, null);
    this._drawRows(context, area, rows);
    this._drawField(context, history, area, rows, x);
    for (const [name, dash] of [["p99", [3, 3]], ["p50", []]]) {
      this._drawQuantile(context, history, name, dash, area, rows, x);
    }
    this._drawBars(context, now, area, rows, width);
    this._read(context, history, area, rows, x, now);
  }

  /** The bands that are shown: up to the largest that ever had pushes. */
  _rows(history) {
    let most = 5;
    for (let at = 0; at < history.length; at += 1) {
      for (let band = most; band < BANDS.length; band += 1) if (history.bands[at * BANDS.length + band]) most = band + 1;
      if (history.p99[at] > 0) most = Math.max(most, bandOf(history.p99[at]) + 1);
    }
    return Math.min(most, BANDS.length);
  }

  _drawRows(context, area, rows) {
    const { muted, font } = theme();
    context.font = `11px ${font}`;
    context.fillStyle = muted;
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let band = 0; band < rows; band += 1) {
      const name = BANDS[band] === Infinity ? `>${BANDS[band - 1]}` : bandName(band);
      context.fillText(name, area.left - 7, area.bottom - (band + 0.5) * area.row);
    }
    context.textAlign = "left";
    context.fillText("over time", area.left, 8);
    context.fillText(`last ${this._seconds} s`, area.right + 14, 8);
  }

  _drawField(context, history, area, rows, x) {
    const wide = Math.max(1, Math.min(Math.floor((area.right - area.left) / 2), history.length));
    if (this._field.width !== wide || this._field.height !== rows) {
      this._field.width = wide;
      this._field.height = rows;
      this._pixels = this._field.getContext("2d").createImageData(wide, rows);
      this._counts = new Float64Array(wide * rows);
    }
    const { counts, data } = { counts: this._counts.fill(0), data: this._pixels.data };
    const span = (area.right - area.left) / wide;
    const columnOf = (time) => Math.max(0, Math.min(wide - 1, Math.floor((x.place(time) - area.left) / span)));
    let before = -1;
    for (let at = 0; at < history.length; at += 1) {
      const last = columnOf(history.time[at]);
      // a point stands for the time since the one before, unless nobody looked for long
      const first = last - before > wide / 10 ? last : Math.min(last, before + 1);
      for (let column = first; column <= last; column += 1) {
        for (let band = 0; band < rows; band += 1) counts[column * rows + band] += history.bands[at * BANDS.length + band];
      }
      before = last;
    }
    const { traffic } = theme();
    for (let column = 0; column < wide; column += 1) {
      let all = 0;
      for (let band = 0; band < rows; band += 1) all += counts[column * rows + band];
      for (let band = 0; band < rows; band += 1) {
        const pushes = counts[column * rows + band];
        const at = 4 * ((rows - 1 - band) * wide + column);
        // the root shows a few stale pushes among many fresh ones
        const [red, green, blue] = shade(traffic, all && pushes ? 0.08 + 0.92 * Math.sqrt(pushes / all) : 0);
        data.set([red, green, blue, all ? 255 : 0], at);
      }
    }
    this._field.getContext("2d").putImageData(this._pixels, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(this._field, area.left, area.top, area.right - area.left, area.bottom - area.top);
    context.strokeStyle = theme().surface;
    context.lineWidth = 1;
    context.beginPath();
    for (let band = 1; band < rows; band += 1) {
      const at = Math.round(area.bottom - band * area.row) + 0.5;
      context.moveTo(area.left, at);
      context.lineTo(area.right, at);
    }
    context.stroke();
  }

  _drawQuantile(context, history, name, dash, area, rows, x) {
    const values = history[name];
    context.lineWidth = 1.5;
    context.strokeStyle = theme().text;
    context.setLineDash(dash);
    context.beginPath();
    const every = Math.max(1, Math.floor(history.length / (area.right - area.left)));
    for (let at = (history.length - 1) % every; at < history.length; at += every) {
      if (Number.isNaN(values[at])) continue;
      const band = Math.min(rows - 1, bandOf(values[at]));
      context.lineTo(x.place(history.time[at]), area.bottom - (band + 0.5) * area.row);
    }
    context.stroke();
    context.setLineDash([]);
  }

  _drawBars(context, now, area, rows, width) {
    const left = area.right + 14;
    const { traffic, muted } = theme();
    const most = Math.max(...now) || 1;
    const room = width - left - 46;
    context.textAlign = "left";
    context.textBaseline = "middle";
    for (let band = 0; band < rows; band += 1) {
      if (!now[band]) continue;
      const top = area.bottom - (band + 1) * area.row;
      const long = Math.max(2, (now[band] / most) * room);
      context.fillStyle = css(shade(traffic, 0.6));
      context.fillRect(left, top + 1, long, Math.max(1, area.row - 2));
      context.fillStyle = muted;
      const text = now[band] < 0.005 ? "<1 %" : `${Math.round(100 * now[band])} %`;
      if (area.row >= 10) context.fillText(text, left + long + 5, top + area.row / 2);
    }
  }

  _read(context, history, area, rows, x, now) {
    const { x: left, y: top } = this._pointer ?? {};
    const band = Math.floor((area.bottom - top) / area.row);
    if (!this._pointer || band < 0 || band >= rows) {
      this._reading.hide();
      return;
    }
    let [title, shares] = [`the last ${this._seconds} s`, now];
    if (left < area.right) {
      const at = nearest(history.time, history.length, x.value(Math.max(area.left, left)));
      title = `step ${number(history.step[at])}: p50 ${number(history.p50[at])}, p99 ${number(history.p99[at])}`;
      const pushes = history.bands.subarray(at * BANDS.length, (at + 1) * BANDS.length);
      const all = pushes.reduce((sum, one) => sum + one, 0);
      shares = all ? Array.from(pushes, (one) => one / all) : pushes;
    }
    const share = `${number(100 * shares[band])} % of pushes`;
    this._reading.show(left, title, [{ name: `staleness ${bandName(band)}`, text: share }], top);
  }
}
