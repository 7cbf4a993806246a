/**
 * Rectangles whose areas are in the proportions of sizes, as square as possible.
 *
 * Source: M. Bruls, K. Huizing, J. van Wijk, "Squarified Treemaps", 2000.
 */

/** The rectangles {item, left, top, width, height} of items with a positive `size`, inside a rectangle. */
export function treemap(items, left, top, width, height) {
  const ordered = items.filter((item) => item.size > 0).sort((one, other) => other.size - one.size);
  const whole = ordered.reduce((sum, item) => sum + item.size, 0);
  if (!whole || !(width > 0) || !(height > 0)) return [];
  const area = (width * height) / whole;
  const placed = [];
  const free = { left, top, width, height };
  let row = [];
  for (const item of ordered) {
    const side = Math.min(free.width, free.height);
    if (row.length && worst([...row, item], side, area) > worst(row, side, area)) {
      place(row, free, area, placed);
      row = [];
    }
    row.push(item);
  }
  place(row, free, area, placed);
  return placed;
}

/** The largest ratio of the sides of rectangles that fill a row along a side of this length. */
function worst(row, side, area) {
  const sum = row.reduce((all, item) => all + item.size, 0) * area;
  const [most, least] = [row[0].size * area, row[row.length - 1].size * area];
  return Math.max((side * side * most) / (sum * sum), (sum * sum) / (side * side * least));
}

/** Puts a row along the shorter side of what is free, which becomes smaller. */
function place(row, free, area, placed) {
  const sum = row.reduce((all, item) => all + item.size, 0) * area;
  const upright = free.width >= free.height;
  const thick = sum / (upright ? free.height : free.width);
  let along = upright ? free.top : free.left;
  for (const item of row) {
    const long = (item.size * area) / thick;
    if (upright) placed.push({ item, left: free.left, top: along, width: thick, height: long });
    else placed.push({ item, left: along, top: free.top, width: long, height: thick });
    along += long;
  }
  if (upright) {
    free.left += thick;
    free.width -= thick;
  } else {
    free.top += thick;
    free.height -= thick;
  }
}
