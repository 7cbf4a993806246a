/**
 * Colors: those of the theme, of workers, and ramps for heat. Workers have the colors of Okabe and Ito, which people with
 * each kind of color vision tell apart (https://jfly.uni-koeln.de/color/); beyond eight workers the dashes differ. The
 * ramps change in lightness only one way, in even steps of OKLab.
 */

const NAMES = ["text", "muted", "faint", "grid", "surface", "ground", "accent", "gone", "warning"];
const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [12, 4], [4, 2, 1, 2, 1, 2], [1, 2], [9, 2]];
const WORKERS = {
  light: ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#9a8700", "#3b4350"],
  dark: ["#4aa3df", "#f0803c", "#1fc495", "#e29bc2", "#8fd0f5", "#f2b63d", "#f0e442", "#c9d1dc"],
};
const RAMPS = {
  light: {
    staleness: ["#f4f1ea", "#f7dfb0", "#efb35e", "#d97f2b", "#a94a12", "#5f2308"],
    traffic: ["#e9eff6", "#bcd3ea", "#7fb0d8", "#3d86bd", "#125c96", "#0b3a66"],
  },
  dark: {
    staleness: ["#20242b", "#3f3021", "#77491b", "#b96d1c", "#eda24a", "#ffe3ae"],
    traffic: ["#1d242d", "#1b344d", "#1c4a72", "#22669c", "#3687c4", "#69b0e6"],
  },
};
const STEPS = 256;

let cached = null;

/** Whether the page is dark now. */
export function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

/** The colors of the present theme: by the names of style.css, the list of `workers`, and the ramps as lists. */
export function theme() {
  if (!cached) {
    const style = getComputedStyle(document.documentElement);
    const kind = isDark() ? "dark" : "light";
    cached = Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
    cached.font = style.getPropertyValue("--font").trim();
    cached.workers = WORKERS[kind];
    for (const [name, stops] of Object.entries(RAMPS[kind])) cached[name] = ramp(stops);
  }
  return cached;
}

/** Has the colors read anew: the theme has changed. */
export function forgetTheme() {
  cached = null;
}

/** The color and the dashes of the worker that was seen as number `place`; grey if it is gone. */
export function workerStyle(place, gone = false) {
  const { workers, gone: grey } = theme();
  const color = gone ? grey : workers[place % workers.length];
  return { color, dash: DASHES[Math.floor(place / workers.length) % DASHES.length] };
}

/** The color of a share from 0 to 1 in a ramp, as [red, green, blue]. */
export function shade(colors, share) {
  return colors[Math.max(0, Math.min(STEPS - 1, Math.round(share * (STEPS - 1))))];
}

/** The same as text for a canvas. */
export function css([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

/** Black or white text, whichever is read better on a color. */
export function textOn([red, green, blue]) {
  const light = (value) => (value / 255) ** 2.2;
  return 0.2126 * light(red) + 0.7152 * light(green) + 0.0722 * light(blue) > 0.24 ? "#14181d" : "#ffffff";
}

function ramp(stops) {
  const points = stops.map((stop) => toOklab([1, 3, 5].map((at) => Number.parseInt(stop.slice(at, at + 2), 16))));
  return Array.from({ length: STEPS }, (_, step) => {
    const at = (step / (STEPS - 1)) * (points.length - 1);
    const low = Math.min(Math.floor(at), points.length - 2);
    return toRgb(points[low].map((value, axis) => value + (at - low) * (points[low + 1][axis] - value)));
  });
}

/** B. Ottosson, "A perceptual color space for image processing", 2020. */
function toOklab(rgb) {
  const [r, g, b] = rgb.map((value) => (value > 10 ? ((value / 255 + 0.055) / 1.055) ** 2.4 : value / 255 / 12.92));
  const l = Math.cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b);
  const m = Math.cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b);
  const s = Math.cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return [
    0.2104542553 * l + 0.793617785 * m - 0.0040720468 * s,
    1.9779984951 * l - 2.428592205 * m + 0.4505937099 * s,
    0.0259040371 * l + 0.7827717662 * m - 0.808675766 * s,
  ];
}

function toRgb([lightness, a, b]) {
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((value) => {
    const encoded = value > 0.0031308 ? 1.055 * value ** (1 / 2.4) - 0.055 : 12.92 * value;
    return Math.round(255 * Math.max(0, Math.min(1, encoded)));
  });
}
