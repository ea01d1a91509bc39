// A T x T map with token labels on both axes: attention weights of one head, or a difference of two.

import { element } from "./dom.js";

const LABEL_PIXELS = 8; // closer labels are not readable
const FONT_FAMILY = "ui-monospace, SFMono-Regular, Menlo, Consolas, monospace";

export class MapView {
  // `onselect(token, pin)` is called with the hovered token, or with the token to pin.
  constructor(onselect) {
    this.onselect = onselect;
    this.canvas = element("canvas", { className: "map", role: "img" });
    this.frame = element("div", { className: "map-frame" }, this.canvas);
    this.tooltip = element("div", { className: "tooltip", hidden: true });
    this.scale = element("div", { className: "scale" });
    this.foot = element(
      "div",
      { className: "row foot" },
      this.scale,
      element("button", { onclick: () => this.#savePng(), title: "save this map as an image" }, "PNG"),
      element("button", { onclick: () => this.#saveCsv(), title: "save this map's numbers" }, "CSV"),
    );
    this.node = element("div", { className: "map-view" }, this.frame, this.tooltip, this.foot);
    this.canvas.addEventListener("pointermove", (event) => this.#hover(event));
    this.canvas.addEventListener("pointerleave", () => this.#leave());
    this.canvas.addEventListener("click", (event) => this.#click(event));
    new ResizeObserver(() => this.image !== undefined && this.#draw()).observe(this.frame);
  }

  // Draws {labels, nameOf(token), image: ImageData or null, valueAt(query, key), selected, direction, title, fileName,
  // scale: {colourAt(position), ticks: {label: position}}}; the scale's positions are 0..1.
  draw({ scale: scaleOf, ...content }) {
    Object.assign(this, content, { scaleOf });
    this.size = this.labels.length;
    this.foot.hidden = !this.image;
    this.#drawScale();
    this.#draw();
    this.#drawTooltip();
  }

  // The map fills the frame, whose size does not depend on it.
  #draw() {
    const side = Math.min(this.frame.clientWidth, this.frame.clientHeight);
    if (side < 1) return;
    const ratio = window.devicePixelRatio || 1;
    Object.assign(this, this.#paint(this.canvas, side, ratio));
    Object.assign(this.canvas.dataset, { cell: this.cell, margin: this.margin });
    this.canvas.style.width = this.canvas.style.height = `${side}px`;
    this.canvas.setAttribute("aria-label", this.title);
  }

  // Paints the map with its labels on a canvas of `side` x (`top` + `side`) pixels; returns {cell, margin} in pixels.
  #paint(canvas, side, ratio, top = 0) {
    const { size, labels, selected } = this;
    const context = canvas.getContext("2d");
    const setFont = (pixels) => (context.font = `${pixels}px ${FONT_FAMILY}`);
    setFont(LABEL_PIXELS + 1);
    const longest = Math.max(...labels.map((label) => context.measureText(label).width));
    const margin = Math.ceil(Math.min(side / 5, 8 + longest));
    const cell = (side - margin - 2) / size;
    canvas.width = Math.round(side * ratio);
    canvas.height = Math.round((top + side) * ratio);
    const styles = getComputedStyle(this.node);
    const [text, accent, background] = ["--text", "--accent", "--background"].map((name) => styles.getPropertyValue(name));
    context.scale(ratio, ratio);
    context.fillStyle = background;
    context.fillRect(0, 0, side, top + side);
    context.translate(0, top);
    context.imageSmoothingEnabled = false;
    if (this.image) {
      const pixels = new OffscreenCanvas(size, size);
      pixels.getContext("2d").putImageData(this.image, 0, 0);
      context.drawImage(pixels, margin, margin, size * cell, size * cell);
    }
    setFont(Math.max(LABEL_PIXELS, Math.min(12, cell)));
    context.textBaseline = "middle";
    const stride = Math.ceil(LABEL_PIXELS / cell);
    for (let token = 0; token < size; token++) {
      if (token !== selected && (token % stride || Math.abs(token - selected) * cell < LABEL_PIXELS)) continue;
      const centre = margin + (token + 0.5) * cell;
      context.fillStyle = token === selected ? accent : text;
      context.textAlign = "right";
      context.fillText(labels[token], margin - 4, centre, margin - 5);
      context.save();
      context.translate(centre, margin - 4);
      context.textAlign = labels[token].length > 1 ? "left" : "center";
      if (labels[token].length > 1) context.rotate(-Math.PI / 2);
      context.fillText(labels[token], 0, labels[token].length > 1 ? 0 : -4, margin - 5);
      context.restore();
    }
    if (this.image && selected !== null) {
      context.strokeStyle = accent;
      context.lineWidth = 1.5;
      const start = margin + selected * cell;
      if (this.direction === "query") context.strokeRect(margin, start, size * cell, cell);
      else context.strokeRect(start, margin, cell, size * cell);
    }
    return { cell, margin };
  }

  #drawScale() {
    const { colourAt, ticks } = this.scaleOf;
    const stops = Array.from({ length: 17 }, (_, i) => colourAt(i / 16));
    this.scale.style.background = `linear-gradient(to right, ${stops.join()}) top / 100% 8px no-repeat`;
    this.scale.replaceChildren(
      ...Object.entries(ticks).map(([label, position]) => {
        const tick = element("span", {}, label);
        tick.style.left = `${100 * position}%`;
        return tick;
      }),
    );
  }

  #savePng() {
    const [side, top, ratio] = [600, 44, 2];
    const canvas = element("canvas");
    this.#paint(canvas, side, ratio, top);
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const text = getComputedStyle(this.node).getPropertyValue("--text");
    const write = (content, x, y, width) => {
      context.fillStyle = text;
      context.fillText(content, x, y, width);
    };
    context.font = "13px system-ui, sans-serif";
    write(this.fileName, 8, 16, side - 16);
    for (let x = 0; x < 200; x++) {
      context.fillStyle = this.scaleOf.colourAt(x / 199);
      context.fillRect(12 + x, 22, 1, 8);
    }
    context.font = "9px system-ui, sans-serif";
    context.textAlign = "center";
    for (const [label, position] of Object.entries(this.scaleOf.ticks)) write(label, 12 + 200 * position, 40);
    canvas.toBlob((png) => download(`${this.fileName}.png`, png));
  }

  // A row per query, a column per key; masked keys are empty.
  #saveCsv() {
    const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
    const names = this.labels.map((label, token) => quote(`${token} ${label}`));
    const cells = (query) => names.map((_, key) => (key <= query ? this.valueAt(query, key).toFixed(4) : ""));
    const lines = names.map((name, query) => [name, ...cells(query)].join());
    download(`${this.fileName}.csv`, new Blob([[quote("query \\ key"), ...names].join(), "\n", lines.join("\n"), "\n"], { type: "text/csv" }));
  }

  #cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const key = Math.floor((event.clientX - box.left - this.margin) / this.cell);
    const query = Math.floor((event.clientY - box.top - this.margin) / this.cell);
    const inside = (token) => token >= 0 && token < this.size;
    return { key, query, x: event.clientX - box.left, y: event.clientY - box.top, inMap: inside(key) && inside(query) };
  }

  #tokenAt({ key, query, inMap }) {
    if (inMap) return this.direction === "query" ? query : key;
    if (key < 0 && query >= 0 && query < this.size) return query; // over a label
    if (query < 0 && key >= 0 && key < this.size) return key;
    return null;
  }

  #hover(event) {
    if (!this.labels) return;
    const at = this.#cellAt(event);
    const token = this.#tokenAt(at);
    if (token !== null) this.onselect(token, false);
    this.hovered = at.inMap ? at : null;
    this.#drawTooltip();
  }

  #drawTooltip() {
    const at = this.hovered;
    this.tooltip.hidden = !this.image || !at || at.query >= this.size || at.key > at.query; // future keys are masked
    if (this.tooltip.hidden) return;
    const value = this.valueAt(at.query, at.key).toFixed(3);
    this.tooltip.textContent = `${this.nameOf(at.query)} → ${this.nameOf(at.key)}: ${value}`;
    // To the right of the pointer, or to its left where the map's right half would put it outside of a small screen.
    const isRight = at.x > this.canvas.clientWidth / 2;
    this.tooltip.style.left = isRight ? "" : `${at.x + 14}px`;
    this.tooltip.style.right = isRight ? `${this.node.clientWidth - at.x + 8}px` : "";
    this.tooltip.style.top = `${at.y - 34}px`; // above the row that is read
  }

  #click(event) {
    if (!this.labels) return;
    const token = this.#tokenAt(this.#cellAt(event));
    if (token !== null) this.onselect(token, true);
  }

  #leave() {
    this.hovered = null;
    this.tooltip.hidden = true;
    this.onselect(null, false);
  }
}

function download(name, blob) {
  const link = element("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}
