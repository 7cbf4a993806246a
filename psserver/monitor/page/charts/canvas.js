/** Canvases that are drawn at the next frame when something changed, at the pixels of the screen, and only while seen. */

const dirty = new Set();
let requested = false;
/** Milliseconds of the last frames, for tests: those in which anything was drawn. */
export const frames = { milliseconds: new Float64Array(240), count: 0 };

function drawAll() {
  requested = false;
  const begin = performance.now();
  for (const drawing of dirty) {
    if (drawing.seen) {
      dirty.delete(drawing);
      drawing.drawNow();
    }
  }
  frames.milliseconds[frames.count % frames.milliseconds.length] = performance.now() - begin;
  frames.count += 1;
}

function request() {
  if (requested) return;
  requested = true;
  requestAnimationFrame(drawAll);
}

const visibility = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) {
      const drawing = drawings.get(target);
      if (!drawing) continue;
      drawing.seen = isIntersecting;
      if (isIntersecting && dirty.has(drawing)) request();
    }
  },
  { rootMargin: "100px" },
);
const sizes = new ResizeObserver((entries) => {
  for (const { target, contentRect } of entries) {
    const drawing = drawings.get(target);
    if (!drawing) continue;
    [drawing.width, drawing.height] = [contentRect.width, contentRect.height];
    drawing.request();
  }
});
const drawings = new WeakMap();

export class Drawing {
  /** `draw(context, width, height)` draws all of `canvas`, in CSS pixels; the canvas is empty before. */
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.seen = false;
    this.width = this.height = 0;
    this._draw = draw;
    this._context = canvas.getContext("2d");
    drawings.set(canvas, this);
    visibility.observe(canvas);
    sizes.observe(canvas);
  }

  /** Has it drawn at the next frame; while it is not seen, as soon as it is. */
  request() {
    dirty.add(this);
    if (this.seen) request();
  }

  /** The end: it is never drawn again. */
  close() {
    dirty.delete(this);
    visibility.unobserve(this.canvas);
    sizes.unobserve(this.canvas);
  }

  drawNow() {
    const { width, height } = this; // as they were observed: asking the canvas would compute the layout at once
    if (!width || !height) return;
    const scale = devicePixelRatio || 1;
    const [columns, rows] = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width !== columns || this.canvas.height !== rows) {
      this.canvas.width = columns;
      this.canvas.height = rows;
    }
    this._context.setTransform(scale, 0, 0, scale, 0, 0);
    this._context.clearRect(0, 0, width, height);
    this._draw(this._context, width, height);
  }
}

/** Widths of texts and shortened texts: measuring is slow, and the names of workers and variables stay. */
const MAX_MEASURED = 4096;
const measured = new Map();

function remembered(key, make) {
  let value = measured.get(key);
  if (value === undefined) {
    if (measured.size >= MAX_MEASURED) measured.clear();
    value = make();
    measured.set(key, value);
  }
  return value;
}

/** The width of a text in the font of small labels. */
export function textWidth(context, text) {
  return remembered(text, () => context.measureText(text).width);
}

/** The text, or its beginning with "…", so that it is not wider than `width`; "" if there is no room at all. */
export function fitted(context, text, width) {
  return remembered(`${Math.floor(width)}\n${text}`, () => shortened(context, text, width));
}

function shortened(context, text, width) {
  if (textWidth(context, text) <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}…` : "";
}
