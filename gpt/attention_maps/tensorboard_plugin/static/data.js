// Client of the server: series, their captures with head scores, and packed maps.
//
// A packed map is the lower triangle of one head, row by row, one byte per weight: 255 times its square root.
// Shape letters: L layers, H heads, T tokens.

const SERVER = new URL("./", import.meta.url);
const CACHE_BYTES = 200e6;

const cache = new Map(); // request to {bytes: a promise, length}, least recently used first
let cachedBytes = 0;

async function get(route, parameters) {
  const url = new URL(route, SERVER);
  url.search = new URLSearchParams(parameters);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${response.status}: ${(await response.text()).slice(0, 200)}`);
  return response;
}

// {run: {tag: {probe, labels, characters, repeats, generated_from, last_wall_time}}}
export async function fetchRuns() {
  return (await get("series")).json();
}

// Losses of a run: {by_position: [{step, positions, losses}], train, val, first_copy, second_copy: [[step, nats]]}.
export async function fetchLosses(run) {
  return (await get("losses", { run })).json();
}

// One probe in one run: its captures, sorted by step.
export class Series {
  constructor(run, tag, metadata) {
    this.run = run;
    this.tag = tag;
    this.metadata = metadata;
    this.captures = []; // {step, wall_time, has_maps, scores: {metric: L x H, roles}, predictions}
    this.readWallTime = null; // the server's last_wall_time when the captures were read
  }

  get size() {
    return this.metadata.labels.length;
  }

  // Reads new captures; returns whether anything changed.
  async refresh(lastWallTime) {
    if (this.readWallTime === lastWallTime) return false;
    const knownCaptures = new Map(this.captures.map((capture) => [identity(capture), capture]));
    const newest = Math.max(0, ...this.captures.map((capture) => capture.wall_time));
    let captures = await this.#read(newest);
    for (const capture of captures) {
      const known = knownCaptures.get(identity(capture));
      if (known && !capture.scores) Object.assign(capture, { scores: known.scores, predictions: known.predictions });
      else if (capture.roles) Object.assign(capture.scores, { roles: capture.roles, measured_at: capture.step });
    }
    if (captures.some((capture) => !capture.scores)) captures = await this.#read(0); // the writer's clock was set back
    const before = this.captures.map(identity).join();
    this.captures = captures.filter((capture) => capture.scores);
    this.readWallTime = lastWallTime;
    return before !== this.captures.map(identity).join();
  }

  async #read(newerThan) {
    return (await get("captures", { run: this.run, tag: this.tag, newer_than: newerThan })).json();
  }

  // Scores at a step, or at the last captured step before it; importance and roles, which few captures have, from the
  // last one that has them, `measured_at`.
  scoresAt(step) {
    return Object.assign({}, ...this.captures.filter((capture) => capture.step <= step).map((capture) => capture.scores));
  }

  // Packed maps of a layer: H x T(T+1)/2 bytes.
  layer(capture, layer) {
    const { step, wall_time } = capture;
    const parameters = { run: this.run, tag: this.tag, step, wall_time, layer };
    const key = JSON.stringify(parameters);
    const entry = cache.get(key) ?? { bytes: loadMaps(parameters), length: 0 };
    if (!cache.delete(key)) {
      entry.bytes.then((bytes) => countBytes(key, entry, bytes.length), () => cache.delete(key));
    }
    cache.set(key, entry); // moved to the end as the most recently used
    return entry.bytes;
  }
}

async function loadMaps(parameters) {
  return new Uint8Array(await (await get("maps", parameters)).arrayBuffer());
}

function countBytes(key, entry, length) {
  if (cache.get(key) !== entry) return; // evicted while loading
  entry.length = length;
  cachedBytes += length;
  for (const [oldest, { length: evicted }] of cache) {
    if (cachedBytes <= CACHE_BYTES) break;
    cache.delete(oldest);
    cachedBytes -= evicted;
  }
}

function identity(capture) {
  return `${capture.step}@${capture.wall_time}`;
}

// The map of one head of a layer; `maskFirst` sets the weights on token 0 to zero and renormalises each row.
export function headMap(layer, head, size, maskFirst) {
  const length = (size * (size + 1)) / 2;
  const map = layer.subarray(head * length, (head + 1) * length);
  return maskFirst ? withoutFirstToken(map, size) : map;
}

function withoutFirstToken(map, size) {
  const masked = new Uint8Array(map.length);
  for (let query = 1; query < size; query++) {
    const row = rowStart(query);
    let sum = 0;
    for (let key = 1; key <= query; key++) sum += weight(map[row + key]);
    // Below this, rounding to bytes dominates and renormalised weights would be noise.
    if (sum < 1e-3) continue;
    const scale = 1 / Math.sqrt(sum);
    for (let key = 1; key <= query; key++) masked[row + key] = Math.min(255, Math.round(map[row + key] * scale));
  }
  return masked;
}

export function rowStart(query) {
  return (query * (query + 1)) / 2;
}

export function weight(byte) {
  return (byte / 255) ** 2;
}

// Attention weights of one query over all keys, or of all queries on one key; NaN where the causal mask applies.
export function weightsOf(map, size, token, direction) {
  const weights = new Float32Array(size).fill(NaN);
  if (direction === "query") {
    for (let key = 0; key <= token; key++) weights[key] = weight(map[rowStart(token) + key]);
  } else {
    for (let query = token; query < size; query++) weights[query] = weight(map[rowStart(query) + token]);
  }
  return weights;
}
