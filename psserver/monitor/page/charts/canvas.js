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
  for (const { target } of entries) drawings.get(target)?.request();
});
const drawings = new WeakMap();

export class Drawing {
  /** `draw(context, width, height)` draws all of `canvas`, in CSS pixels; the canvas is empty before. */
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.seen = false;
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
    const { clientWidth: width, clientHeight: height } = this.canvas;
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

/** The text, or its beginning with "…", so that it is not wider than `width`; "" if there is no room at all. */
export function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let [low, high] = [0, text.length];
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(`${text.slice(0, middle)}…`).width <= width) low = middle;
    else high = middle - 1;
  }
  return low > 0 ? `${text.slice(0, low)}…` : "";
}
