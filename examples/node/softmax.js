'use strict';
// Softmax regression on MNIST: the 55,000 training examples of psworker's datasets.mnist(), and the cost of some of them.

const fs = require('node:fs'), path = require('node:path'), zlib = require('node:zlib');

const SIZE = 55_000, FIRST = 5_000, PIXELS = 784; // the examples before are for validation
const read = (name, header) => zlib.gunzipSync(fs.readFileSync(path.join(__dirname, '../../datasets/mnist', name))).subarray(header);
const images = read('train-images-idx3-ubyte.gz', 16 + FIRST * PIXELS), labels = read('train-labels-idx1-ubyte.gz', 8 + FIRST);

/** The mean cross-entropy of these rows for weights W (784 x 10) and biases b, and its gradients by name. */
function gradientsOf(W, b, rows) {
  const gradients = { W: new Float32Array(W.length), b: new Float32Array(b.length) };
  let cost = 0;
  for (const row of rows) {
    const pixels = images.subarray(PIXELS * row, PIXELS * (row + 1)), logits = Float64Array.from(b);
    pixels.forEach((pixel, i) => { if (pixel) for (let k = 0; k < 10; k++) logits[k] += pixel / 255 * W[10 * i + k]; });
    const largest = Math.max(...logits), exponentials = logits.map((logit) => Math.exp(logit - largest));
    const sum = exponentials.reduce((x, y) => x + y);
    cost -= Math.log(exponentials[labels[row]] / sum) / rows.length;
    const errors = exponentials.map((one, k) => (one / sum - (k === labels[row])) / rows.length);
    errors.forEach((error, k) => { gradients.b[k] += error; });
    pixels.forEach((pixel, i) => { if (pixel) for (let k = 0; k < 10; k++) gradients.W[10 * i + k] += pixel / 255 * errors[k]; });
  }
  return { cost, gradients };
}

module.exports = { SIZE, gradientsOf };
