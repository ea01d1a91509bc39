// What the server has: series, their captures with the scores of every head, and packed maps.
//
// A packed map is the lower triangle of one head, row by row, one byte a weight: 255 times its square root.
// Shape letters: L layers, H heads, T tokens.

const SERVER = new URL("./", import.meta.url);
const CACHE_BYTES = 200e6;

const cache = new Map(); // address to {bytes: a promise, length}, least recently used first
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

// One probe in one run: its captures in order of steps.
export class Series {
  constructor(run, tag, facts) {
    this.run = run;
    this.tag = tag;
    this.facts = facts;
    this.captures = []; // {step, wall_time, has_maps, scores: {metric: L x H}}
    this.seen = null; // last_wall_time of the server's when the captures were read
  }

  get size() {
    return this.facts.labels.length;
  }

  // Read what is new; true if anything has changed.
  async refresh(lastWallTime) {
    if (this.seen === lastWallTime) return false;
    const known = new Map(this.captures.map((capture) => [identity(capture), capture.scores]));
    const newest = Math.max(0, ...this.captures.map((capture) => capture.wall_time));
    let captures = await this.#read(newest);
    for (const capture of captures) capture.scores ??= known.get(identity(capture));
    if (captures.some((capture) => !capture.scores)) captures = await this.#read(0); // a clock that went back
    const before = this.captures.map(identity).join();
    this.captures = captures.filter((capture) => capture.scores);
    this.seen = lastWallTime;
    return before !== this.captures.map(identity).join();
  }

  async #read(newerThan) {
    return (await get("captures", { run: this.run, tag: this.tag, newer_than: newerThan })).json();
  }

  // Scores at a step, or at the last one before it.
  scoresAt(step) {
    let found = null;
    for (const capture of this.captures) if (capture.step <= step) found = capture.scores;
    return found;
  }

  // The packed maps of a layer: H times T(T+1)/2 bytes.
  layer(capture, layer) {
    const { step, wall_time } = capture;
    const parameters = { run: this.run, tag: this.tag, step, wall_time, layer };
    const key = JSON.stringify(parameters);
    const entry = cache.get(key) ?? { bytes: loadMaps(parameters), length: 0 };
    if (!cache.delete(key)) {
      entry.bytes.then((bytes) => keep(key, entry, bytes.length), () => cache.delete(key));
    }
    cache.set(key, entry); // as the most recently used one
    return entry.bytes;
  }
}

async function loadMaps(parameters) {
  return new Uint8Array(await (await get("maps", parameters)).arrayBuffer());
}

function keep(key, entry, length) {
  if (cache.get(key) !== entry) return; // dropped while it was loading
  entry.length = length;
  cachedBytes += length;
  for (const [oldest, { length: freed }] of cache) {
    if (cachedBytes <= CACHE_BYTES) break;
    cache.delete(oldest);
    cachedBytes -= freed;
  }
}

function identity(capture) {
  return `${capture.step}@${capture.wall_time}`;
}

// The map of one head out of a layer's; with `mute`, token 0 has nothing and the others share its weight.
export function headMap(layer, head, size, mute) {
  const length = (size * (size + 1)) / 2;
  const map = layer.subarray(head * length, (head + 1) * length);
  return mute ? withoutFirstToken(map, size) : map;
}

function withoutFirstToken(map, size) {
  const muted = new Uint8Array(map.length);
  for (let query = 1; query < size; query++) {
    const row = rowStart(query);
    let rest = 0;
    for (let key = 1; key <= query; key++) rest += weight(map[row + key]);
    // Less than this is what rounding to bytes leaves: shares of it would be noise.
    if (rest < 1e-3) continue;
    const grown = 1 / Math.sqrt(rest);
    for (let key = 1; key <= query; key++) muted[row + key] = Math.min(255, Math.round(map[row + key] * grown));
  }
  return muted;
}

export function rowStart(query) {
  return (query * (query + 1)) / 2;
}

export function weight(byte) {
  return (byte / 255) ** 2;
}

// The weight of every token as seen from one: where a query looks, or who looks at a key; NaN where none can be.
export function weightsOf(map, size, token, direction) {
  const weights = new Float32Array(size).fill(NaN);
  if (direction === "query") {
    for (let key = 0; key <= token; key++) weights[key] = weight(map[rowStart(token) + key]);
  } else {
    for (let query = token; query < size; query++) weights[query] = weight(map[rowStart(query) + token]);
  }
  return weights;
}
