/** Scales of axes, with round ticks: linear, logarithmic, of steps and of times; and how a grid is drawn. */

import { clock, count, number } from "../data/format.js";
import { theme } from "./colors.js";

const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400];

/** About `wanted` multiples of 1, 2 or 5 times a power of ten from `low` to `high`. */
export function roundTicks(low, high, wanted) {
  const rough = (high - low) / Math.max(1, wanted);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((one) => one * power >= rough * 0.999);
  return multiples(low, high, step);
}

function multiples(low, high, step) {
  const ticks = [];
  for (let place = Math.ceil(low / step - 1e-9); place * step <= high + step * 1e-9; place += 1) ticks.push(place * step + 0); // not -0
  return ticks;
}

function decades(low, high) {
  const [tens, all] = [[], []];
  for (let power = Math.floor(Math.log10(low)); 10 ** power <= high; power += 1) {
    for (const one of [1, 2, 5]) {
      const tick = one * 10 ** power;
      if (tick < low * 0.999 || tick > high * 1.001) continue;
      all.push(tick);
      if (one === 1) tens.push(tick);
    }
  }
  if (all.length < 2) return roundTicks(low, high, 4);
  return all.length > 7 ? tens : all;
}

/**
 * A scale from values to pixels, {place, value, ticks, label}: `kind` is "linear", "log", "step" or "time"; values from
 * `low` to `high` lie from pixel `from` to pixel `to`.
 */
export function scale(kind, low, high, from, to, wanted = 5) {
  const [bend, straight] = kind === "log" ? [Math.log, Math.exp] : [Number, Number];
  const [first, last] = [bend(low), bend(high)];
  const width = last - first || 1;
  const labels = { time: clock, step: count };
  let ticks;
  if (kind === "log") ticks = decades(low, high);
  else if (kind === "time") {
    const step = SECONDS.find((one) => (high - low) / one <= wanted) ?? 86400 * Math.ceil((high - low) / wanted / 86400);
    const zone = new Date(high * 1000).getTimezoneOffset() * 60;
    ticks = multiples(low - zone, high - zone, step).map((tick) => tick + zone);
  } else ticks = roundTicks(low, high, wanted);
  if (kind === "step") ticks = ticks.filter(Number.isInteger);
  return {
    place: (value) => from + ((bend(value) - first) / width) * (to - from),
    value: (pixel) => straight(first + ((pixel - from) / (to - from)) * width),
    ticks,
    label: labels[kind] ?? ((value) => number(value)),
  };
}

/** A few words in place of a chart that has nothing to show yet. */
export function drawEmpty(context, words) {
  const { muted, font } = theme();
  context.font = `12px ${font}`;
  context.fillStyle = muted;
  context.textAlign = "left";
  context.textBaseline = "top";
  context.fillText(words, 2, 8);
}

/** Draws the grid of `y`, and the labels of both axes, around the area {left, top, right, bottom}. */
export function drawAxes(context, area, x, y) {
  const { grid, muted, font } = theme();
  context.font = `11px ${font}`;
  context.fillStyle = muted;
  context.strokeStyle = grid;
  context.lineWidth = 1;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.beginPath();
  for (const tick of y?.ticks ?? []) {
    const at = Math.round(y.place(tick)) + 0.5;
    context.moveTo(area.left, at);
    context.lineTo(area.right, at);
    context.fillText(y.label(tick), area.left - 8, at);
  }
  context.stroke();
  context.textBaseline = "top";
  let free = -Infinity;
  for (const tick of x.ticks) {
    const text = x.label(tick);
    const half = context.measureText(text).width / 2;
    const at = Math.max(area.left + half - 8, Math.min(area.right - half + 4, x.place(tick)));
    if (at - half < free) continue;
    free = at + half + 10;
    context.textAlign = "center";
    context.fillText(text, at, area.bottom + 7);
  }
}
