// Small grids are enlarged by interpolating values, before they become colours: cubic (Catmull-Rom), so that
// the middle of each enlarged point holds that point's own value. The factor is odd to have such a middle.
const ENOUGH_PIXELS = 220;

function enlarge(values, { width, height, periodic }) {
  const factor = 2 * Math.round((Math.min(9, ENOUGH_PIXELS / Math.max(width, height)) - 1) / 2) + 1;
  if (factor < 3) return { values, width, height };
  const wide = enlargeRows(values, width, height, factor, periodic[0]);
  const tall = enlargeRows(transpose(wide, width * factor, height), height, width * factor, factor, periodic[1]);
  return { values: transpose(tall, height * factor, width * factor), width: width * factor, height: height * factor };
}

function enlargeRows(values, width, height, factor, periodic) {
  const result = new Float32Array(width * height * factor), half = (factor - 1) / 2;
  const wrap = (i) => (periodic ? (i + width) % width : Math.min(width - 1, Math.max(0, i)));
  for (let target = 0; target < width * factor; target++) {
    const place = (target - half) / factor, first = Math.floor(place), weights = cubicWeights(place - first);
    const columns = [-1, 0, 1, 2].map((step) => wrap(first + step));
    for (let row = 0; row < height; row++) {
      const start = row * width;
      let sum = 0;
      for (let tap = 0; tap < 4; tap++) if (weights[tap] !== 0) sum += weights[tap] * values[start + columns[tap]];
      result[row * width * factor + target] = sum;
    }
  }
  return result;
}

function cubicWeights(s) {
  return [s * (s * (2 - s) - 1) / 2, (s * s * (3 * s - 5) + 2) / 2, s * (s * (4 - 3 * s) + 1) / 2, s * s * (s - 1) / 2];
}

function transpose(values, width, height) {
  const result = new Float32Array(values.length);
  for (let row = 0; row < height; row++) for (let column = 0; column < width; column++) result[column * height + row] = values[row * width + column];
  return result;
}
