// One head, enlarged: its map with token labels on both axes, and the token strip below it.

import { element } from "./dom.js";
import { SCALES, colour, css, imageOf, textColourOn } from "./colours.js";
import { rowStart, weight, weightsOf } from "./data.js";

const MAP_PIXELS = 576;
const LABEL_PIXELS = 9; // closer labels are not readable
const FONT_FAMILY = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";

export class HeadView {
  // `onselect(token, pin)` is called with the hovered token, or with the token to pin.
  constructor(onselect) {
    this.onselect = onselect;
    this.canvas = element("canvas", { className: "map", role: "img" });
    this.tooltip = element("div", { className: "tooltip", hidden: true });
    this.strip = element("div", { className: "strip", tabIndex: 0, role: "listbox", "aria-label": "tokens" });
    this.summary = element("p", { className: "summary" });
    this.node = element(
      "div",
      { className: "head-view" },
      element("div", { className: "map-frame" }, this.canvas),
      this.tooltip,
      this.strip,
      this.summary,
    );
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => this.#leave());
    this.canvas.addEventListener("click", (event) => this.#click(event));
    this.strip.addEventListener("keydown", (event) => this.#keydown(event));
    this.strip.addEventListener("pointerleave", () => this.#leave());
  }

  // `options` is {scale, direction, dark, announce}; `selected` is a token; `map` is null if it was not written.
  draw(metadata, map, options, selected, title) {
    Object.assign(this, { metadata, map, options, selected });
    this.size = metadata.labels.length;
    // Screen readers announce a pinned token, but not hovered tokens or playback.
    this.summary.setAttribute("aria-live", options.announce ? "polite" : "off");
    this.#drawMap(title);
    this.#drawStrip();
    this.#drawTooltip();
  }

  #name(token) {
    const character = this.metadata.characters[token];
    return `${token} “${this.metadata.labels[token]}”${character ? ` (part of ${character})` : ""}`;
  }

  #drawMap(title) {
    const { size, metadata, options, map } = this;
    const cell = Math.max(2, Math.floor(MAP_PIXELS / size));
    const context = this.canvas.getContext("2d");
    const font = `${Math.max(LABEL_PIXELS, Math.min(12, cell))}px ${FONT_FAMILY}`;
    context.font = font;
    const labelStride = Math.ceil(LABEL_PIXELS / cell);
    const margin = Math.ceil(Math.min(110, 8 + Math.max(...metadata.labels.map((label) => context.measureText(label).width))));
    const sidePixels = margin + size * cell + 2;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.canvas.height = Math.round(sidePixels * ratio);
    this.canvas.style.width = this.canvas.style.height = `${sidePixels}px`;
    this.canvas.setAttribute("aria-label", title);
    Object.assign(this, { cell, margin });
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    if (map) {
      const pixels = new OffscreenCanvas(size, size);
      pixels.getContext("2d").putImageData(imageOf(map, size, options.scale, options.dark), 0, 0);
      context.drawImage(pixels, margin, margin, size * cell, size * cell);
    }
    const styles = getComputedStyle(this.node);
    const [textColour, accent] = [styles.getPropertyValue("--text"), styles.getPropertyValue("--accent")];
    context.font = font;
    context.textBaseline = "middle";
    for (let token = 0; token < size; token++) {
      if (token % labelStride && token !== this.selected) continue;
      const centre = margin + (token + 0.5) * cell;
      context.fillStyle = token === this.selected ? accent : textColour;
      context.textAlign = "right";
      context.fillText(metadata.labels[token], margin - 5, centre, margin - 6);
      context.save();
      context.translate(centre, margin - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(metadata.labels[token], 0, 0, margin - 6);
      context.restore();
    }
    if (map && this.selected !== null) {
      context.strokeStyle = accent;
      context.lineWidth = 1.5;
      const start = margin + this.selected * cell;
      const length = size * cell;
      if (options.direction === "query") context.strokeRect(margin, start, length, cell);
      else context.strokeRect(start, margin, cell, length);
    }
  }

  #drawStrip() {
    const { size, metadata, map, options, selected } = this;
    const weights = map && selected !== null ? weightsOf(map, size, selected, options.direction) : null;
    if (this.strip.childElementCount !== size) this.#buildStrip();
    [...this.strip.children].forEach((span, token) => {
      const label = metadata.labels[token];
      if (span.textContent !== label) span.textContent = label;
      span.title = this.#name(token) + (weights && !Number.isNaN(weights[token]) ? `: ${weights[token].toFixed(3)}` : "");
      const shade = weights && !Number.isNaN(weights[token]) ? colour(SCALES[options.scale](weights[token])) : null;
      span.style.background = shade ? css(shade) : "";
      span.style.color = shade ? textColourOn(shade) : "";
      span.setAttribute("aria-selected", String(token === selected));
      span.classList.toggle("generated", metadata.generated_from !== null && token >= metadata.generated_from);
    });
    this.strip.setAttribute("aria-activedescendant", selected === null ? "" : this.strip.children[selected].id);
    this.summary.textContent = weights ? this.#describe(weights) : "";
  }

  #buildStrip() {
    const id = (HeadView.count = (HeadView.count ?? 0) + 1);
    this.strip.replaceChildren(
      ...this.metadata.labels.map((_, token) =>
        element("span", {
          className: "token",
          id: `token-${id}-${token}`,
          role: "option",
          onpointerenter: () => this.onselect(token, false),
          onclick: () => this.onselect(token, true),
        }),
      ),
    );
  }

  #describe(weights) {
    const top = [...weights.keys()].filter((token) => weights[token] >= 0.005).sort((a, b) => weights[b] - weights[a]);
    const most = top.slice(0, 3).map((token) => `${this.#name(token)} ${weights[token].toFixed(2)}`);
    const subject = this.#name(this.selected);
    if (!most.length) return `${subject}: all attention weights are 0.`;
    return this.options.direction === "query"
      ? `${subject} attends to ${most.join(", ")}${top.length > 3 ? ", …" : ""}`
      : `${subject} is attended to by ${most.join(", ")}${top.length > 3 ? ", …" : ""}`;
  }

  #cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - this.margin) / this.cell);
    const query = Math.floor((event.clientY - box.top - this.margin) / this.cell);
    const inside = (token) => token >= 0 && token < this.size;
    return { key, query, x: event.clientX - box.left, y: event.clientY - box.top, inMap: inside(key) && inside(query) };
  }

  #tokenAt({ key, query, inMap }) {
    if (inMap) return this.options.direction === "query" ? query : key;
    if (key < 0 && query >= 0 && query < this.size) return query; // over a label
    if (query < 0 && key >= 0 && key < this.size) return key;
    return null;
  }

  #hover(event) {
    if (!this.metadata) return;
    const at = this.#cellAt(event);
    const token = this.#tokenAt(at);
    if (token !== null) this.onselect(token, false);
    this.hovered = at.inMap ? at : null;
    this.#drawTooltip();
  }

  #drawTooltip() {
    const at = this.hovered;
    this.tooltip.hidden = !this.map || !at || Math.max(at.query, at.key) >= this.size;
    if (this.tooltip.hidden) return;
    const value = at.key <= at.query ? weight(this.map[rowStart(at.query) + at.key]).toFixed(3) : "masked (future key)";
    this.tooltip.textContent = `${this.#name(at.query)} → ${this.#name(at.key)}: ${value}`;
    this.tooltip.style.left = `${at.x + 14}px`;
    this.tooltip.style.top = `${at.y + 14}px`;
  }

  #click(event) {
    const token = this.#tokenAt(this.#cellAt(event));
    if (token !== null) this.onselect(token, true);
  }

  #leave() {
    this.hovered = null;
    this.tooltip.hidden = true;
    this.onselect(null, false);
  }

  #keydown(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const end = { Home: 0, End: this.size - 1 }[event.key];
    if (step === undefined && end === undefined) return;
    const token = end ?? Math.min(this.size - 1, Math.max(0, (this.selected ?? 0) + step));
    this.onselect(token, true, true);
    event.preventDefault();
    event.stopPropagation();
  }
}
