/** Numbers, sizes, durations and times as text. `null`, `undefined` and NaN are "–". */

const NONE = "–";
const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const clocks = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

const missing = (value) => value === null || value === undefined || Number.isNaN(value);

/** A whole number with separators: 12,345. */
export function count(value) {
  return missing(value) ? NONE : whole.format(value);
}

/** A measured number with so many significant digits, such as 0.0123, 1.23, 123 or 12,300. */
export function number(value, digits = 3) {
  if (missing(value)) return NONE;
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size >= 1000) return whole.format(value);
  if (size > 0 && size < 1e-4) return value.toExponential(1);
  return value === 0 ? "0" : String(Number(value.toPrecision(digits)));
}

/** A number with one decimal below 100, so that a column of them does not jump. */
export function fixed(value) {
  if (missing(value)) return NONE;
  return Math.abs(value) < 99.95 ? value.toFixed(1) : whole.format(value);
}

const SIZES = ["B", "kB", "MB", "GB", "TB", "PB"];

/** Bytes in powers of 1000: 12.3 MB. */
export function bytes(value) {
  if (missing(value)) return NONE;
  let size = value;
  let unit = 0;
  while (size >= 999.5 && unit < SIZES.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit && size < 99.95 ? size.toFixed(1) : whole.format(size)} ${SIZES[unit]}`;
}

/** Seconds as 0.4 s, 12 s, 3 min 5 s or 2 h 4 min. */
export function duration(seconds) {
  if (missing(seconds)) return NONE;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const all = Math.round(seconds);
  if (all < 60) return `${all} s`;
  if (all < 3600) return `${Math.floor(all / 60)} min ${all % 60} s`;
  return `${whole.format(Math.floor(all / 3600))} h ${Math.floor((all % 3600) / 60)} min`;
}

/** Seconds since 1970 as a time of day. */
export function clock(time) {
  return missing(time) ? NONE : clocks.format(new Date(time * 1000));
}

/** "1 worker", "3 workers". */
export function plural(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** An update rule with its hyperparameters: "adam (learning_rate 0.001, beta1 0.9)". */
export function updateRule(rule) {
  if (!rule) return "none";
  const { kind, ...values } = rule;
  const plain = Object.entries(values).filter(([, value]) => value !== null && typeof value !== "object");
  return plain.length ? `${kind} (${plain.map(([name, value]) => `${name} ${value}`).join(", ")})` : kind;
}

/** A shape: "5 × 5 × 32", "scalar". */
export function shape(sizes) {
  return sizes.length ? sizes.map(count).join(" × ") : "scalar";
}
