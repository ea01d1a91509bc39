// The scores of one head: each with its value at the step shown, and over all steps as a sparkline.

import { element, svg } from "./dom.js";
import { METRICS, show } from "./metrics.js";

const [WIDTH, HEIGHT, MARGIN] = [220, 30, 3];

export class ScoreTable {
  constructor(onstep) {
    this.onstep = onstep;
    this.body = element("tbody");
    this.ends = [element("span"), element("span")];
    const head = element(
      "thead",
      {},
      element(
        "tr",
        {},
        element("th", { scope: "col" }, "score of this head"),
        element("th", { scope: "col" }, "now"),
        element("th", { scope: "col" }, element("div", { className: "steps" }, this.ends[0], "steps, logarithmic", this.ends[1])),
      ),
    );
    this.node = element("table", { className: "scores" }, head, this.body);
  }

  // `history` is [{step, scores}] in order of steps; `step` the one that is shown.
  draw(history, step, layer, head) {
    const steps = history.map((point) => point.step);
    const now = history.findLast((point) => point.step <= step) ?? history[0];
    this.ends[0].textContent = `${steps[0]}`;
    this.ends[1].textContent = `${steps.at(-1)}`;
    const place = (at) => {
      const [first, last] = [Math.log1p(steps[0]), Math.log1p(steps.at(-1))];
      return MARGIN + ((Math.log1p(at) - first) / (last - first || 1)) * (WIDTH - 2 * MARGIN);
    };
    const rows = [];
    for (const [metric, { name, about, share }] of Object.entries(METRICS)) {
      const values = history.map(({ scores }) => scores[metric]?.[layer]?.[head]);
      const known = values.filter((value) => value != null);
      if (!known.length) continue;
      const low = share ? 0 : Math.min(...known);
      const high = share ? 1 : Math.max(...known);
      const level = (value) => HEIGHT - MARGIN - ((value - low) / (high - low || 1)) * (HEIGHT - 2 * MARGIN);
      const points = values.flatMap((value, i) => (value == null ? [] : [`${place(steps[i]).toFixed(1)},${level(value).toFixed(1)}`]));
      const value = now.scores[metric]?.[layer]?.[head];
      const line = svg(
        "svg",
        { class: "sparkline", width: WIDTH, height: HEIGHT, role: "img", "aria-label": trend(name, steps, values, metric) },
        svg("line", { x1: place(step), x2: place(step), y1: 0, y2: HEIGHT, class: "now" }),
        svg("polyline", { points: points.join(" ") }),
        ...(value == null ? [] : [svg("circle", { cx: place(now.step), cy: level(value), r: 2.5 })]),
      );
      line.addEventListener("click", (event) => this.onstep(nearest(steps, place, event.offsetX)));
      rows.push(
        element(
          "tr",
          { title: about },
          element("th", { scope: "row" }, name),
          element("td", {}, show(value, metric)),
          element("td", {}, line),
        ),
      );
    }
    this.body.replaceChildren(...rows);
  }
}

function nearest(steps, place, x) {
  return steps.reduce((best, step) => (Math.abs(place(step) - x) < Math.abs(place(best) - x) ? step : best));
}

function trend(name, steps, values, metric) {
  return `${name}: ${show(values[0], metric)} at step ${steps[0]}, ${show(values.at(-1), metric)} at step ${steps.at(-1)}`;
}
