// A slider over the captures of a series, with the run's training and validation loss behind it.

import { element, svg } from "./dom.js";
import { valueAt } from "./curves.js";

export class StepSlider {
  // `onmove(index)` is called with the index of a capture.
  constructor(name, onmove) {
    this.curves = svg("svg", { viewBox: "0 0 1 1", preserveAspectRatio: "none", "aria-hidden": "true" });
    this.input = element("input", { type: "range", min: 0, max: 0, step: 1, "aria-label": `step of ${name}`, oninput: () => onmove(Number(this.input.value)) });
    this.step = element("span", { className: "step" });
    this.losses = element("span", { className: "losses" });
    this.node = element("div", { className: "slider" }, this.curves, this.input);
    this.text = element("div", { className: "slider-text" }, this.step, this.losses);
  }

  // `losses` is {train, val}, each [[step, nats]] or missing.
  draw(captures, index, losses) {
    const { step } = captures[index];
    this.input.max = captures.length - 1;
    this.input.value = index;
    this.input.setAttribute("aria-valuetext", `step ${step}`);
    this.step.textContent = `step ${step} (${index + 1} of ${captures.length})`;
    const shown = ["train", "val"].filter((name) => losses[name]?.length);
    const values = shown.flatMap((name) => losses[name].map(([, nats]) => nats));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const point = ([at, nats]) => `${positionOf(captures, at).toFixed(4)},${(0.95 - (0.9 * (nats - low)) / (high - low || 1)).toFixed(4)}`;
    // If only some captures have maps, a mark at each of them.
    const marked = captures.every(({ has_maps }) => has_maps) ? [] : captures.filter(({ has_maps }) => has_maps);
    const marks = marked.map(({ step: at }) => svg("line", { class: "has-map", x1: positionOf(captures, at), x2: positionOf(captures, at), y1: 0.8, y2: 1 }));
    this.curves.replaceChildren(...marks, ...shown.map((name) => svg("polyline", { class: name, points: losses[name].map(point).join(" ") })));
    this.losses.replaceChildren(
      ...(shown.length ? ["loss: "] : []),
      ...shown.map((name) => element("span", { className: name }, `${name} ${valueAt(losses[name], step)?.toFixed(2) ?? "–"} `)),
    );
  }
}

// Where a step lies on the slider, 0..1: captures are evenly spaced, steps between them are interpolated.
function positionOf(captures, step) {
  const last = captures.length - 1;
  const after = captures.findIndex((capture) => capture.step >= step);
  if (after < 0) return 1;
  if (after === 0 || last === 0) return 0;
  const [from, to] = [captures[after - 1].step, captures[after].step];
  return (after - 1 + (step - from) / (to - from)) / last;
}
