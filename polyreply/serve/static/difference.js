// How different texts are: a distance of word n-grams, and a map on which near texts are near.

function ngrams(text) {
  const words = text.toLowerCase().match(/[\p{L}\p{N}']+/gu) || [];
  const pairs = words.slice(1).map((word, place) => `${words[place]} ${word}`);
  return [...words, ...pairs];
}

function counts(items) {
  const found = new Map();
  for (const item of items) found.set(item, (found.get(item) || 0) + 1);
  return found;
}

// 1 - Dice similarity of the words and word pairs: 0 for the same words in the same order, 1 for none in common.
export function distance(a, b) {
  const [first, second] = [ngrams(a), ngrams(b)];
  const size = first.length + second.length;
  if (!size) return a === b ? 0 : 1;
  const others = counts(second);
  let common = 0;
  for (const [item, number] of counts(first)) common += Math.min(number, others.get(item) || 0);
  return 1 - (2 * common) / size;
}

export function distances(texts) {
  return texts.map((a) => texts.map((b) => distance(a, b)));
}

export function meanDistance(texts) {
  if (texts.length < 2) return 0;
  const total = distances(texts).flat().reduce((sum, one) => sum + one, 0);
  return total / (texts.length * (texts.length - 1));
}

// Classical multidimensional scaling: the two directions in which the texts differ most.
export function positions(matrix) {
  const n = matrix.length;
  if (!n) return [];
  const square = matrix.map((row) => row.map((d) => d * d));
  const rowMean = square.map((row) => row.reduce((a, b) => a + b, 0) / n);
  const mean = rowMean.reduce((a, b) => a + b, 0) / n;
  const inner = square.map((row, i) => row.map((d, j) => -0.5 * (d - rowMean[i] - rowMean[j] + mean)));
  const axes = [0, 1].map((axis) => principal(inner, axis));
  return matrix.map((_, i) => axes.map((axis) => axis[i]));
}

// The dominant eigenvector times the root of its eigenvalue; the matrix is deflated by it.
function principal(matrix, seed) {
  const n = matrix.length;
  let vector = matrix.map((_, i) => Math.cos(1 + i * (seed + 1.7)));
  let value = 0;
  for (let round = 0; round < 200; round += 1) {
    const next = matrix.map((row) => row.reduce((sum, x, j) => sum + x * vector[j], 0));
    value = Math.hypot(...next);
    if (value < 1e-9) return new Array(n).fill(0);
    vector = next.map((x) => x / value);
  }
  for (let i = 0; i < n; i += 1) for (let j = 0; j < n; j += 1) matrix[i][j] -= value * vector[i] * vector[j];
  return vector.map((x) => x * Math.sqrt(value));
}

// Positions within a frame, pushed apart until no two points overlap.
export function layout(matrix, width, height, radius) {
  const raw = positions(matrix);
  const reach = Math.max(1e-6, ...raw.flat().map(Math.abs));
  const [halfWidth, halfHeight] = [width / 2 - radius - 4, height / 2 - radius - 4];
  const points = raw.map(([x, y], i) => [
    width / 2 + (x / reach) * halfWidth + Math.cos(i * 2.4) * 0.5,
    height / 2 + (y / reach) * halfHeight + Math.sin(i * 2.4) * 0.5,
  ]);
  for (let round = 0; round < 60; round += 1) {
    for (let i = 0; i < points.length; i += 1) {
      for (let j = 0; j < i; j += 1) push(points[i], points[j], 2 * radius + 1);
    }
    for (const point of points) {
      point[0] = Math.min(width - radius - 3, Math.max(radius + 3, point[0]));
      point[1] = Math.min(height - radius - 3, Math.max(radius + 3, point[1]));
    }
  }
  return points;
}

function push(a, b, least) {
  const [dx, dy] = [a[0] - b[0], a[1] - b[1]];
  const apart = Math.hypot(dx, dy) || 1e-6;
  if (apart >= least) return;
  const move = (least - apart) / 2 / apart;
  a[0] += dx * move;
  a[1] += dy * move;
  b[0] -= dx * move;
  b[1] -= dy * move;
}
