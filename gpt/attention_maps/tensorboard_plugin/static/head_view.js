// One head, large: its map with the tokens along both sides, and the strip of tokens under it.

import { element } from "./dom.js";
import { SCALES, colour, css, imageOf, inkOn } from "./colours.js";
import { rowStart, weight, weightsOf } from "./data.js";

const MAP_PIXELS = 576;
const LABEL_PIXELS = 9; // labels closer than this cannot be read
const FAMILY = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";

export class HeadView {
  // `onpoint(token, locked)` is told which token is looked at.
  constructor(onpoint) {
    this.onpoint = onpoint;
    this.canvas = element("canvas", { className: "map", role: "img" });
    this.tip = element("div", { className: "tip", hidden: true });
    this.strip = element("div", { className: "strip", tabIndex: 0, role: "listbox", "aria-label": "tokens" });
    this.reading = element("p", { className: "reading" });
    this.node = element(
      "div",
      { className: "head-view" },
      element("div", { className: "map-frame" }, this.canvas),
      this.tip,
      this.strip,
      this.reading,
    );
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => this.#leave());
    this.canvas.addEventListener("click", (event) => this.#click(event));
    this.strip.addEventListener("keydown", (event) => this.#keydown(event));
    this.strip.addEventListener("pointerleave", () => this.#leave());
  }

  // `look` is {scale, direction, dark}; `pointed` the token that is looked at; `map` null where none is kept.
  draw(facts, map, look, pointed, title) {
    Object.assign(this, { facts, map, look, pointed });
    this.size = facts.labels.length;
    // What is read out follows a token that was chosen, and not every one that the pointer passes, or a film.
    this.reading.setAttribute("aria-live", look.spoken ? "polite" : "off");
    this.#drawMap(title);
    this.#drawStrip();
    this.#drawTip();
  }

  #name(token) {
    const character = this.facts.characters[token];
    return `${token} “${this.facts.labels[token]}”${character ? ` (part of ${character})` : ""}`;
  }

  #drawMap(title) {
    const { size, facts, look, map } = this;
    const cell = Math.max(2, Math.floor(MAP_PIXELS / size));
    const context = this.canvas.getContext("2d");
    const font = `${Math.max(LABEL_PIXELS, Math.min(12, cell))}px ${FAMILY}`;
    context.font = font;
    const every = Math.ceil(LABEL_PIXELS / cell);
    const margin = Math.ceil(Math.min(110, 8 + Math.max(...facts.labels.map((label) => context.measureText(label).width))));
    const side = margin + size * cell + 2;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.canvas.height = Math.round(side * ratio);
    this.canvas.style.width = this.canvas.style.height = `${side}px`;
    this.canvas.setAttribute("aria-label", title);
    Object.assign(this, { cell, margin });
    context.scale(ratio, ratio);
    context.imageSmoothingEnabled = false;
    if (map) {
      const pixels = new OffscreenCanvas(size, size);
      pixels.getContext("2d").putImageData(imageOf(map, size, look.scale, look.dark), 0, 0);
      context.drawImage(pixels, margin, margin, size * cell, size * cell);
    }
    const styles = getComputedStyle(this.node);
    const [ink, accent] = [styles.getPropertyValue("--ink"), styles.getPropertyValue("--accent")];
    context.font = font;
    context.textBaseline = "middle";
    for (let token = 0; token < size; token++) {
      if (token % every && token !== this.pointed) continue;
      const middle = margin + (token + 0.5) * cell;
      context.fillStyle = token === this.pointed ? accent : ink;
      context.textAlign = "right";
      context.fillText(facts.labels[token], margin - 5, middle, margin - 6);
      context.save();
      context.translate(middle, margin - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(facts.labels[token], 0, 0, margin - 6);
      context.restore();
    }
    if (map && this.pointed !== null) {
      context.strokeStyle = accent;
      context.lineWidth = 1.5;
      const along = margin + this.pointed * cell;
      const all = size * cell;
      if (look.direction === "query") context.strokeRect(margin, along, all, cell);
      else context.strokeRect(along, margin, cell, all);
    }
  }

  #drawStrip() {
    const { size, facts, map, look, pointed } = this;
    const weights = map && pointed !== null ? weightsOf(map, size, pointed, look.direction) : null;
    if (this.strip.childElementCount !== size) this.#buildStrip();
    [...this.strip.children].forEach((span, token) => {
      const label = facts.labels[token];
      if (span.textContent !== label) span.textContent = label;
      span.title = this.#name(token) + (weights && !Number.isNaN(weights[token]) ? `: ${weights[token].toFixed(3)}` : "");
      const shade = weights && !Number.isNaN(weights[token]) ? colour(SCALES[look.scale](weights[token])) : null;
      span.style.background = shade ? css(shade) : "";
      span.style.color = shade ? inkOn(shade) : "";
      span.setAttribute("aria-selected", String(token === pointed));
      span.classList.toggle("generated", facts.generated_from !== null && token >= facts.generated_from);
    });
    this.strip.setAttribute("aria-activedescendant", pointed === null ? "" : this.strip.children[pointed].id);
    this.reading.textContent = weights ? this.#sentence(weights) : "";
  }

  #buildStrip() {
    const id = (HeadView.count = (HeadView.count ?? 0) + 1);
    this.strip.replaceChildren(
      ...this.facts.labels.map((_, token) =>
        element("span", {
          className: "token",
          id: `token-${id}-${token}`,
          role: "option",
          onpointerenter: () => this.onpoint(token, false),
          onclick: () => this.onpoint(token, true),
        }),
      ),
    );
  }

  #sentence(weights) {
    const top = [...weights.keys()].filter((token) => weights[token] >= 0.005).sort((a, b) => weights[b] - weights[a]);
    const most = top.slice(0, 3).map((token) => `${this.#name(token)} ${weights[token].toFixed(2)}`);
    const subject = this.#name(this.pointed);
    if (!most.length) return `${subject} has no weight to show.`;
    return this.look.direction === "query"
      ? `${subject} looks at ${most.join(", ")}${top.length > 3 ? ", …" : ""}`
      : `${subject} is looked at by ${most.join(", ")}${top.length > 3 ? ", …" : ""}`;
  }

  #cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - this.margin) / this.cell);
    const query = Math.floor((event.clientY - box.top - this.margin) / this.cell);
    const inside = (token) => token >= 0 && token < this.size;
    return { key, query, x: event.clientX - box.left, y: event.clientY - box.top, inMap: inside(key) && inside(query) };
  }

  #tokenAt({ key, query, inMap }) {
    if (inMap) return this.look.direction === "query" ? query : key;
    if (key < 0 && query >= 0 && query < this.size) return query; // on a label
    if (query < 0 && key >= 0 && key < this.size) return key;
    return null;
  }

  #hover(event) {
    if (!this.facts) return;
    const at = this.#cellAt(event);
    const token = this.#tokenAt(at);
    if (token !== null) this.onpoint(token, false);
    this.under = at.inMap ? at : null;
    this.#drawTip();
  }

  #drawTip() {
    const at = this.under;
    this.tip.hidden = !this.map || !at || Math.max(at.query, at.key) >= this.size;
    if (this.tip.hidden) return;
    const seen = at.key <= at.query ? weight(this.map[rowStart(at.query) + at.key]).toFixed(3) : "not yet written then";
    this.tip.textContent = `${this.#name(at.query)} → ${this.#name(at.key)}: ${seen}`;
    this.tip.style.left = `${at.x + 14}px`;
    this.tip.style.top = `${at.y + 14}px`;
  }

  #click(event) {
    const token = this.#tokenAt(this.#cellAt(event));
    if (token !== null) this.onpoint(token, true);
  }

  #leave() {
    this.under = null;
    this.tip.hidden = true;
    this.onpoint(null, false);
  }

  #keydown(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const end = { Home: 0, End: this.size - 1 }[event.key];
    if (step === undefined && end === undefined) return;
    const token = end ?? Math.min(this.size - 1, Math.max(0, (this.pointed ?? 0) + step));
    this.onpoint(token, true, true);
    event.preventDefault();
    event.stopPropagation();
  }
}
