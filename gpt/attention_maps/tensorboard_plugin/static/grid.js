// All heads of all layers at one step: a thumbnail and a score per head, sorted and filtered by that score.

import { element } from "./dom.js";
import { css, colour, imageOf, textColourOn } from "./colours.js";
import { headMap } from "./data.js";
import { METRICS, formatScore, importanceOf, roleOf } from "./metrics.js";

export class Grid {
  constructor(onselect) {
    this.onselect = onselect;
    this.tiles = []; // {layer, head, button, canvas, caption}, layer after layer
    this.visible = []; // the tiles in display order
    this.node = element("div", { className: "grid", role: "group", "aria-label": "all heads" });
    this.box = element("div", { className: "grid-box" }, this.node);
    this.drawCount = 0; // lets an outdated drawing stop
  }

  // `capture` is null if none has maps; `options` is {metric, sorted, minimum, scale, maskFirst, dark}; `selected` is
  // {layer, head}.
  async draw(series, capture, scores, options, selected) {
    const drawing = ++this.drawCount;
    const numLayers = scores.sink.length;
    const numHeads = scores.sink[0].length;
    this.#build(numLayers, numHeads);
    this.#caption(scores, options, numHeads, selected, series.size);
    const content = JSON.stringify([series.run, series.tag, capture?.step, capture?.wall_time, options.scale, options.maskFirst, options.dark]);
    const layers = new Set(this.visible.filter((tile) => tile.content !== content).map((tile) => tile.layer));
    this.failed = false; // whether some maps could not be loaded
    await Promise.all([...layers].map((layer) => this.#paint(layer, series, capture, options, content, drawing)));
  }

  async #paint(layer, series, capture, options, content, drawing) {
    let packed = null;
    try {
      if (capture) packed = await series.layer(capture, layer);
    } catch {
      this.failed = true; // the panel shows the error
    }
    if (drawing !== this.drawCount) return;
    for (const tile of this.tiles.filter((tile) => tile.layer === layer)) {
      tile.content = this.failed ? null : content;
      if (packed) paint(tile.canvas, imageOf(headMap(packed, tile.head, series.size, options.maskFirst), series.size, options.scale, options.dark));
      else tile.canvas.width = tile.canvas.height = 1; // transparent: the tile shows the colour of its score
    }
  }

  focus({ layer, head }) {
    this.#tile(layer, head)?.button.focus();
  }

  // The head that an arrow key selects: by rows and columns, or in sorted order.
  neighbour(selected, right, down) {
    const current = this.visible.indexOf(this.#tile(selected.layer, selected.head));
    if (current < 0 && this.visible.length) return { layer: this.visible[0].layer, head: this.visible[0].head };
    const step = this.sorted ? right + down : right + down * this.numHeads;
    const next = this.visible[current + step];
    const sameRow = this.sorted || down || next?.layer === selected.layer;
    return next && sameRow ? { layer: next.layer, head: next.head } : selected;
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

  #caption(scores, options, numHeads, selected, size) {
    const range = rangeOf(scores, options.metric);
    for (const tile of this.tiles) {
      const role = roleOf(scores, tile.layer, tile.head, size);
      tile.value = options.metric === "role" ? role?.value : scores[options.metric]?.[tile.layer]?.[tile.head];
      const metric = options.metric;
      const name = `layer ${tile.layer}, head ${tile.head}`;
      const shownRole = role ? `${role.name} ${role.value.toFixed(2)}` : "no clear role";
      const description = metric === "role" ? shownRole : `${METRICS[metric].name} ${formatScore(tile.value, metric)}`;
      const roleName = (metric === "role" && role?.name) || "";
      const importance = importanceOf(scores, tile.layer, tile.head);
      tile.button.style.setProperty("--importance", importance ?? 0);
      const place = options.sorted ? `L${tile.layer}H${tile.head}` : "";
      tile.caption.replaceChildren(...[place, tile.value?.toFixed(2) ?? "", roleName].filter(Boolean).map((part) => element("span", {}, part)));
      tile.button.title = `${name}: ${description}`;
      tile.button.setAttribute("aria-label", tile.button.title);
      const isSelected = tile.layer === selected.layer && tile.head === selected.head;
      tile.button.setAttribute("aria-pressed", String(isSelected));
      tile.button.tabIndex = isSelected ? 0 : -1;
      const shade = colour(((tile.value ?? range.low) - range.low) / (range.high - range.low || 1));
      tile.button.style.setProperty("--score", css(shade));
      tile.caption.style.color = tile.value == null ? "" : textColourOn(shade);
      tile.caption.style.background = tile.value == null ? "transparent" : css(shade);
      tile.reachesMinimum = options.minimum === null || (tile.value ?? -Infinity) >= options.minimum;
      tile.button.classList.toggle("below-minimum", !tile.reachesMinimum);
    }
    const shown = options.sorted ? this.tiles.filter((tile) => tile.reachesMinimum) : [...this.tiles];
    if (options.sorted) shown.sort((one, other) => (other.value ?? -Infinity) - (one.value ?? -Infinity));
    if (!shown.some((tile) => tile.button.tabIndex === 0) && shown.length) shown[0].button.tabIndex = 0;
    const focused = this.tiles.find((tile) => tile.button === document.activeElement);
    this.#place(shown, options.sorted, numHeads);
    if (focused && this.node.contains(focused.button)) focused.button.focus(); // moving a button removes its focus
    this.#scrollTo(this.#tile(selected.layer, selected.head));
  }

  // Scrolls a newly selected tile into the grid's box, and nothing else of the page.
  #scrollTo(tile) {
    if (!tile || tile === this.scrolledTo) return;
    this.scrolledTo = tile;
    const [top, bottom] = [tile.button.offsetTop - 4, tile.button.offsetTop + tile.button.offsetHeight + 4];
    const { scrollTop, clientHeight } = this.box;
    this.box.scrollTop = Math.min(top, Math.max(scrollTop, bottom - clientHeight));
  }

  #place(shown, sorted, numHeads) {
    const unchanged = this.sorted === sorted && shown.length === this.visible.length && shown.every((tile, i) => tile === this.visible[i]);
    this.visible = shown;
    this.sorted = sorted;
    if (unchanged) return;
    this.node.classList.toggle("sorted", sorted);
    this.node.style.setProperty("--columns", numHeads);
    this.node.style.gridTemplateColumns = sorted ? "" : `auto repeat(${numHeads}, minmax(0, 1fr))`;
    if (sorted) {
      this.node.replaceChildren(...shown.map((tile) => tile.button));
      if (!shown.length) this.node.append(element("p", { className: "no-heads" }, "No head reaches this score."));
      return;
    }
    const heads = Array.from({ length: numHeads }, (_, head) => element("span", { className: "axis" }, `H${head}`));
    const rows = shown.flatMap((tile) =>
      tile.head === 0 ? [element("span", { className: "axis" }, `L${tile.layer}`), tile.button] : [tile.button],
    );
    this.node.replaceChildren(element("span", { className: "axis" }), ...heads, ...rows);
  }
}

// The range of a metric's values.
export function rangeOf(scores, metric) {
  if (metric === "role" || METRICS[metric].isFraction) return { low: 0, high: 1 };
  const values = scores[metric].flat().filter((value) => value != null);
  return values.length ? { low: Math.min(...values), high: Math.max(...values) } : { low: 0, high: 1 };
}

function paint(canvas, image) {
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").putImageData(image, 0, 0);
}
