/**
 * The staleness of workers and variables as a field of cells, a row a worker. What is expected of so many workers is light;
 * above that the color is logarithmic. A cell without a push has no color; a worker that is gone is grey.
 */

import { drawEmpty } from "./axes.js";
import { css, shade, textOn, theme } from "./colors.js";
import { fitted, textWidth } from "./canvas.js";
import { Chart } from "./chart.js";
import { fixed } from "../data/format.js";

const SLANT = -Math.PI / 4;
/** Pixels for the names of variables and the legend; the most for a row. */
const TOP = 64;
const HIGHEST_ROW = 56;
/** The part of the ramp up to the expected staleness. */
const LIGHT = 0.2;

/** The least height of the canvas for so many workers; their rows become higher where there is more. */
export function heatMapHeight(workers) {
  const row = workers <= 8 ? 28 : workers <= 24 ? 20 : workers <= 64 ? 12 : 9;
  return Math.max(1, workers) * row + TOP + 8;
}

export class HeatMap extends Chart {
  /**
   * `describe()` gives {workers, variables, values, gone, notes}: lists of names, the staleness of each cell row by row
   * (NaN: no push), and of each worker whether it is gone, and what is said beside its name. `onSelect(worker, variable)` is called
   * when a cell, or the name of a row or column, is clicked; the other name is null.
   */
  constructor(canvas, describe, onSelect) {
    super(canvas);
    this._describe = describe;
    this._cells = document.createElement("canvas");
    this._pixels = null;
    canvas.addEventListener("click", () => {
      const { worker, variable } = this._under ?? {};
      if (worker ?? variable) onSelect(worker ?? null, variable ?? null);
    });
  }

  _draw(context, width, height) {
    const map = this._describe();
    if (!map.workers.length || !map.variables.length) {
      drawEmpty(context, "no pushes yet");
      return;
    }
    context.font = `11px ${theme().font}`;
    const labels = map.workers.map((name, line) => (map.notes[line] ? `${name} (${map.notes[line]})` : name));
    const names = Math.max(...labels.map((label) => textWidth(context, label)));
    const left = Math.max(40, Math.min(names + 14, width * 0.3));
    const bottom = Math.min(height - 8, TOP + HIGHEST_ROW * map.workers.length);
    const area = { left, top: TOP, right: width - 12, bottom };
    area.column = (area.right - area.left) / map.variables.length;
    area.row = (area.bottom - area.top) / map.workers.length;
    const colors = scaleOf(map.values, map.gone.filter((word) => !word).length);
    this._drawCells(context, map, area, colors);
    this._drawWorkers(context, map, labels, area);
    this._drawVariables(context, map, area);
    this._drawLegend(context, area, colors);
    this._point(context, map, area);
  }

  _drawCells(context, { workers, variables, values, gone }, area, colors) {
    const [wide, high] = [variables.length, workers.length];
    if (this._cells.width !== wide || this._cells.height !== high || !this._pixels) {
      this._cells.width = wide;
      this._cells.height = high;
      this._pixels = this._cells.getContext("2d").createImageData(wide, high);
    }
    const { staleness, faint } = theme();
    const empty = [1, 3, 5].map((at) => Number.parseInt(faint.slice(at, at + 2), 16));
    const { data } = this._pixels;
    for (let line = 0; line < high; line += 1) {
      for (let place = 0; place < wide; place += 1) {
        const at = line * wide + place;
        const value = values[at];
        const [red, green, blue] = Number.isNaN(value) || gone[line] ? empty : shade(staleness, level(value, colors));
        data[4 * at] = red;
        data[4 * at + 1] = green;
        data[4 * at + 2] = blue;
        data[4 * at + 3] = 255;
      }
    }
    this._cells.getContext("2d").putImageData(this._pixels, 0, 0);
    context.imageSmoothingEnabled = area.column < 1.5;
    context.drawImage(this._cells, area.left, area.top, area.right - area.left, area.bottom - area.top);
    this._drawGaps(context, area, wide, high);
    if (area.column >= 34 && area.row >= 14) this._drawValues(context, { wide, high, values, gone }, area, colors);
  }

  _drawGaps(context, area, wide, high) {
    context.strokeStyle = theme().surface;
    context.lineWidth = 1;
    context.beginPath();
    if (area.column >= 5) {
      for (let place = 1; place < wide; place += 1) {
        const at = area.left + place * area.column;
        context.moveTo(at, area.top);
        context.lineTo(at, area.bottom);
      }
    }
    for (let line = 1; line < high && area.row >= 5; line += 1) {
      const at = area.top + line * area.row;
      context.moveTo(area.left, at);
      context.lineTo(area.right, at);
    }
    context.stroke();
  }

  _drawValues(context, { wide, high, values, gone }, area, colors) {
    context.textAlign = "center";
    context.textBaseline = "middle";
    for (let line = 0; line < high; line += 1) {
      for (let place = 0; place < wide; place += 1) {
        const value = values[line * wide + place];
        const known = !Number.isNaN(value) && !gone[line];
        context.fillStyle = known ? textOn(shade(theme().staleness, level(value, colors))) : theme().gone;
        const [x, y] = [area.left + (place + 0.5) * area.column, area.top + (line + 0.5) * area.row];
        context.fillText(known ? fixed(value) : "–", x, y);
      }
    }
  }

  _drawWorkers(context, { gone }, labels, area) {
    const { text, gone: grey } = theme();
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.ceil(10 / area.row);
    labels.forEach((label, line) => {
      if (line % every) return;
      context.fillStyle = gone[line] ? grey : text;
      context.fillText(fitted(context, label, area.left - 10), area.left - 8, area.top + (line + 0.5) * area.row);
    });
  }

  _drawVariables(context, { variables }, area) {
    const { muted } = theme();
    context.fillStyle = muted;
    context.textBaseline = "middle";
    const widest = Math.max(...variables.map((name) => textWidth(context, name)));
    if (widest + 6 <= area.column) {
      context.textAlign = "center";
      variables.forEach((name, place) => context.fillText(name, area.left + (place + 0.5) * area.column, area.top - 10));
      return;
    }
    const every = Math.ceil(13 / area.column);
    context.textAlign = "left";
    variables.forEach((name, place) => {
      if (place % every) return;
      const x = area.left + (place + 0.5) * area.column;
      context.save();
      context.translate(x, area.top - 6);
      context.rotate(SLANT);
      context.fillText(fitted(context, name, Math.min(66, (area.right - x) * 1.4 + 14)), 0, 0);
      context.restore();
    });
  }

  /** The colors of some values, in the upper left corner, which no name of a column reaches. */
  _drawLegend(context, area, { expected, most }) {
    const { staleness, muted } = theme();
    const width = Math.max(24, Math.min(84, area.left - 16));
    const left = Math.max(4, area.left - 8 - width);
    for (let pixel = 0; pixel < width; pixel += 1) {
      context.fillStyle = css(shade(staleness, pixel / (width - 1)));
      context.fillRect(left + pixel, 10, 1.5, 8);
    }
    context.fillStyle = muted;
    context.textBaseline = "top";
    context.textAlign = "left";
    context.fillText("0", left, 22);
    context.fillText(String(expected), left + LIGHT * width + 2, 22);
    context.textAlign = "right";
    context.fillText(String(most), left + width, 22);
    context.fillRect(left + LIGHT * width, 10, 1, 12);
  }

  _point(context, { workers, variables, values, notes }, area) {
    this._under = null;
    const { x, y } = this._pointer ?? {};
    const line = Math.floor((y - area.top) / area.row);
    const place = Math.floor((x - area.left) / area.column);
    const [worker, variable] = [workers[line], place >= 0 ? variables[place] : undefined];
    const clickable = this._pointer && (worker !== undefined || (y < area.top && variable !== undefined));
    this.drawing.canvas.style.cursor = clickable ? "pointer" : "";
    if (!clickable) {
      this._reading.hide();
      return;
    }
    this._under = { worker, variable: variable ?? null };
    context.strokeStyle = theme().text;
    context.lineWidth = 1.5;
    const [column, row] = [worker === undefined || variable !== undefined, worker !== undefined];
    const left = column ? area.left + place * area.column : area.left;
    const top = row ? area.top + line * area.row : area.top;
    const width = column ? area.column : area.right - area.left;
    context.strokeRect(left, top, width, row ? area.row : area.bottom - area.top);
    const value = values[line * variables.length + place];
    const state = notes[line] || (Number.isNaN(value) ? "no push" : `staleness ${fixed(value)}`);
    const both = worker !== undefined && variable !== undefined;
    this._reading.show(x, both ? `${worker}: ${state}` : (worker ?? variable), both ? [variable] : [], y + 16);
  }
}

/**
 * The scale of the colors: {expected, most}. `expected` is the staleness of workers of one speed, each of which misses the
 * updates of all others; it is the end of the light fifth of the ramp. `most` is that of the last color.
 */
export function scaleOf(values, workers) {
  const expected = Math.max(1, workers - 1);
  let most = 8 * (expected + 1) - 1;
  for (const value of values) while (value > most) most = 2 * most + 1;
  return { expected, most };
}

/** The share of the ramp of a staleness: above the expected one, twice the staleness is one step wherever it is. */
export function level(value, { expected, most }) {
  if (!(value > expected)) return (LIGHT * Math.max(0, value)) / expected;
  return LIGHT + ((1 - LIGHT) * Math.log2((1 + value) / (1 + expected))) / Math.log2((1 + most) / (1 + expected));
}
