// Small grids are enlarged by interpolating values, before they become colours: cubic (Catmull-Rom), so that
// the middle of each enlarged point holds that point's own value. The factor is odd to have such a middle.
const ENOUGH_PIXELS = 220;

// Where along an axis a point is drawn, from 0 to 1: in the middle of its cell, or at its coordinate if uneven.
function shareOf(plane, axis, index) {
  const points = plane.points[axis], [start, end] = plane.extent[axis];
  return plane.even[axis] ? (index + 0.5) / points.length : (points[index] - start) / (end - start);
}

// The point that is drawn at a share of an axis.
function indexAt(plane, axis, share) {
  const points = plane.points[axis], [start, end] = plane.extent[axis];
  if (plane.even[axis]) return Math.min(points.length - 1, Math.floor(share * points.length));
  const distances = points.map((point) => Math.abs(point - start - share * (end - start)));
  return distances.indexOf(Math.min(...distances));
}

// What each pixel along an axis shows, as a fractional index of points.
function placesAlong(plane, axis, factor) {
  const points = plane.points[axis], [start, end] = plane.extent[axis];
  if (plane.even[axis]) return Array.from({ length: points.length * factor }, (_, pixel) => (pixel - (factor - 1) / 2) / factor);
  const wraps = plane.periodic[axis], count = Math.max(points.length * factor, ENOUGH_PIXELS);
  const known = wraps ? [points[points.length - 1] - end + start, ...points, points[0] + end - start] : points;
  return Array.from({ length: count }, (_, pixel) => {
    const x = start + (pixel + 0.5) / count * (end - start), right = known.findIndex((point) => point >= x);
    if (right < 1) return right === 0 ? 0 : known.length - 1;
    return right - 1 + (x - known[right - 1]) / (known[right] - known[right - 1]) - (wraps ? 1 : 0);
  });
}

// Values on the pixels of a picture; `smooth` interpolates between points instead of taking the nearest, up to about
// `enough` pixels a side.
function enlarge(values, plane, smooth = true, enough = ENOUGH_PIXELS) {
  const { width, height, periodic } = plane;
  const wanted = smooth ? Math.min(9, enough / Math.max(width, height)) : 1;
  const factor = 2 * Math.round((wanted - 1) / 2) + 1;
  if (factor < 3 && plane.even.every(Boolean)) return { values, width, height };
  const [right, up] = [0, 1].map((axis) => placesAlong(plane, axis, factor).map((place) => (smooth ? place : Math.round(place))));
  const wide = enlargeRows(values, width, height, right, periodic[0]);
  const tall = enlargeRows(transpose(wide, right.length, height), height, right.length, up, periodic[1]);
  return { values: transpose(tall, up.length, right.length), width: right.length, height: up.length };
}

function enlargeRows(values, width, height, places, periodic) {
  const result = new Float32Array(places.length * height);
  const wrap = (i) => (periodic ? (i + width) % width : Math.min(width - 1, Math.max(0, i)));
  places.forEach((place, target) => {
    const first = Math.floor(place), weights = cubicWeights(place - first), columns = [-1, 0, 1, 2].map((step) => wrap(first + step));
    for (let row = 0; row < height; row++) {
      const start = row * width;
      let sum = 0;
      for (let tap = 0; tap < 4; tap++) if (weights[tap] !== 0) sum += weights[tap] * values[start + columns[tap]];
      // Between a body, which has no values, and its surroundings nothing is interpolated.
      result[row * places.length + target] = Number.isNaN(sum) ? values[start + wrap(Math.round(place))] : sum;
    }
  });
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
