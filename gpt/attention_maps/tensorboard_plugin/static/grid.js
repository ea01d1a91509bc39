// All heads of all layers at one step: a thumbnail each, with a score; sorted and filtered by that score.

import { element } from "./dom.js";
import { css, colour, imageOf, inkOn } from "./colours.js";
import { headMap } from "./data.js";
import { METRICS, roleOf, show } from "./metrics.js";

export class Grid {
  constructor(onselect) {
    this.onselect = onselect;
    this.tiles = []; // {layer, head, button, canvas, caption}, layer after layer
    this.order = []; // the tiles that can be reached, in the order in which they stand
    this.node = element("div", { className: "grid", role: "group", "aria-label": "all heads" });
    this.drawn = 0; // counts drawings, so that one that was overtaken stops
  }

  // `look` is {metric, sorted, atLeast, scale, mute, dark}; `selected` is {layer, head}.
  async draw(series, capture, scores, look, selected) {
    const drawing = ++this.drawn;
    const numLayers = scores.sink.length;
    const numHeads = scores.sink[0].length;
    this.#build(numLayers, numHeads);
    this.#caption(scores, look, numHeads, selected, series.size);
    const painted = JSON.stringify([series.run, series.tag, capture.step, capture.wall_time, look.scale, look.mute, look.dark]);
    const layers = new Set(this.order.filter((tile) => tile.painted !== painted).map((tile) => tile.layer));
    this.failed = false; // some maps could not be loaded
    await Promise.all([...layers].map((layer) => this.#paint(layer, series, capture, look, painted, drawing)));
  }

  async #paint(layer, series, capture, look, painted, drawing) {
    let packed = null;
    try {
      if (capture.has_maps) packed = await series.layer(capture, layer);
    } catch {
      this.failed = true; // the panel says what is wrong
    }
    if (drawing !== this.drawn) return;
    for (const tile of this.tiles.filter((tile) => tile.layer === layer)) {
      tile.painted = this.failed ? null : painted;
      if (packed) paint(tile.canvas, imageOf(headMap(packed, tile.head, series.size, look.mute), series.size, look.scale, look.dark));
      else tile.canvas.width = tile.canvas.height = 1; // transparent: the tile's own colour is its score
    }
  }

  focus({ layer, head }) {
    this.#tile(layer, head)?.button.focus();
  }

  // The head that arrow keys lead to; rows and columns where the grid has them.
  neighbour(selected, right, down) {
    const here = this.order.indexOf(this.#tile(selected.layer, selected.head));
    if (here < 0 && this.order.length) return { layer: this.order[0].layer, head: this.order[0].head };
    const step = this.sorted ? right + down : right + down * this.numHeads;
    const there = this.order[here + step];
    const sameRow = this.sorted || down || there?.layer === selected.layer;
    return there && sameRow ? { layer: there.layer, head: there.head } : selected;
  }

  #tile(layer, head) {
    return this.tiles.find((tile) => tile.layer === layer && tile.head === head);
  }

  #build(numLayers, numHeads) {
    if (this.numHeads === numHeads && this.tiles.length === numLayers * numHeads) return;
    this.numHeads = numHeads;
    this.tiles = [];
    for (let layer = 0; layer < numLayers; layer++) {
      for (let head = 0; head < numHeads; head++) {
        const canvas = element("canvas", { width: 1, height: 1 });
        const caption = element("span", { className: "caption" });
        const button = element("button", { className: "tile", onclick: () => this.onselect({ layer, head }) }, canvas, caption);
        this.tiles.push({ layer, head, button, canvas, caption });
      }
    }
    this.sorted = undefined;
  }

  #caption(scores, look, numHeads, selected, size) {
    const range = rangeOf(scores, look.metric);
    for (const tile of this.tiles) {
      const role = roleOf(scores, tile.layer, tile.head, size);
      tile.value = look.metric === "role" ? role?.value : scores[look.metric]?.[tile.layer][tile.head];
      const metric = look.metric === "role" ? role?.metric : look.metric;
      const name = `layer ${tile.layer}, head ${tile.head}`;
      const described = metric ? `${METRICS[metric].name} ${show(tile.value, metric)}` : "no clear role";
      const short = look.metric === "role" && metric ? METRICS[metric].name : "";
      tile.caption.textContent = [look.sorted ? `L${tile.layer}H${tile.head}` : "", tile.value?.toFixed(2) ?? "", short].join(" ").trim();
      tile.button.title = `${name}: ${described}`;
      tile.button.setAttribute("aria-label", tile.button.title);
      const isSelected = tile.layer === selected.layer && tile.head === selected.head;
      tile.button.setAttribute("aria-pressed", String(isSelected));
      tile.button.tabIndex = isSelected ? 0 : -1;
      const shade = colour(((tile.value ?? range.low) - range.low) / (range.high - range.low || 1));
      tile.button.style.setProperty("--score", css(shade));
      tile.caption.style.color = tile.value == null ? "" : inkOn(shade);
      tile.caption.style.background = tile.value == null ? "transparent" : css(shade);
      tile.enough = look.atLeast === null || (tile.value ?? -Infinity) >= look.atLeast;
      tile.button.classList.toggle("faded", !tile.enough);
    }
    const shown = look.sorted ? this.tiles.filter((tile) => tile.enough) : [...this.tiles];
    if (look.sorted) shown.sort((one, other) => (other.value ?? -Infinity) - (one.value ?? -Infinity));
    if (!shown.some((tile) => tile.button.tabIndex === 0) && shown.length) shown[0].button.tabIndex = 0;
    const focused = this.tiles.find((tile) => tile.button === document.activeElement);
    this.#place(shown, look.sorted, numHeads);
    if (focused && this.node.contains(focused.button)) focused.button.focus(); // which moving it has taken away
  }

  #place(shown, sorted, numHeads) {
    const same = this.sorted === sorted && shown.length === this.order.length && shown.every((tile, i) => tile === this.order[i]);
    this.order = shown;
    this.sorted = sorted;
    if (same) return;
    this.node.classList.toggle("sorted", sorted);
    this.node.style.setProperty("--columns", numHeads);
    this.node.style.gridTemplateColumns = sorted ? "" : `auto repeat(${numHeads}, minmax(0, 1fr))`;
    if (sorted) {
      this.node.replaceChildren(...shown.map((tile) => tile.button));
      if (!shown.length) this.node.append(element("p", { className: "none" }, "No head has that much."));
      return;
    }
    const heads = Array.from({ length: numHeads }, (_, head) => element("span", { className: "axis" }, `${head}`));
    const rows = shown.flatMap((tile) =>
      tile.head === 0 ? [element("span", { className: "axis" }, `layer ${tile.layer}`), tile.button] : [tile.button],
    );
    this.node.replaceChildren(element("span", { className: "axis" }, "head"), ...heads, ...rows);
  }
}

// From the lowest to the highest value of a metric that can be asked for.
export function rangeOf(scores, metric) {
  if (metric === "role" || METRICS[metric].share) return { low: 0, high: 1 };
  const values = scores[metric].flat().filter((value) => value != null);
  return values.length ? { low: Math.min(...values), high: Math.max(...values) } : { low: 0, high: 1 };
}

function paint(canvas, image) {
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}
