// Packed clips to levels: base64, inflate, running sum in time. Level 255 means "not finite".
const LEVELS = 254, NOT_FINITE = 255;

async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpackClip(text, pointsPerFrame) {
  const levels = await inflate(fromBase64(text));
  for (let i = pointsPerFrame; i < levels.length; i++) levels[i] = (levels[i] + levels[i - pointsPerFrame]) & 255;
  return levels;
}

// Physical values of one frame of a selection; the prediction is the truth plus the difference.
class Clip {
  constructor(truth, difference, field, plane) {
    Object.assign(this, { truth, difference, field, plane, size: plane.width * plane.height });
  }
  truthAt(frame, point) { return decode(this.truth[frame * this.size + point], this.field.truth_range); }
  differenceAt(frame, point) { return decode(this.difference[frame * this.size + point], this.field.difference_range); }
  valueAt(kind, frame, point) {
    if (kind === "truth") return this.truthAt(frame, point);
    if (kind === "difference") return this.differenceAt(frame, point);
    return this.truthAt(frame, point) + this.differenceAt(frame, point);
  }
  frame(kind, frame) {
    return Float32Array.from({ length: this.size }, (_, point) => this.valueAt(kind, frame, point));
  }
}

function decode(level, [low, high]) {
  return level === NOT_FINITE ? NaN : low + (high - low) * level / LEVELS;
}

class ClipStore {
  constructor(data) { this.data = data; this.cache = new Map(); }
  load(kind, owner, sample, field, plane) {
    const key = [kind, owner, sample, field, plane].join();
    if (!this.cache.has(key)) {
      const { width, height } = this.data.planes[plane];
      this.cache.set(key, unpackClip(this.data[kind][owner][sample][field][plane], width * height));
    }
    return this.cache.get(key);
  }
  // Values of the input field of a steady problem, or null.
  async input({ sample, plane }) {
    const { input, planes } = this.data;
    if (!input) return null;
    const levels = await unpackClip(input.clips[sample][plane], planes[plane].width * planes[plane].height);
    return Float32Array.from(levels, (level) => decode(level, input.range));
  }
  async clip({ run, sample, field, plane }) {
    const [truth, difference] = await Promise.all([
      this.load("truth", this.data.truth_of_run[run], sample, field, plane),
      this.load("difference", run, sample, field, plane),
    ]);
    return new Clip(truth, difference, this.data.fields[field], this.data.planes[plane]);
  }
}
