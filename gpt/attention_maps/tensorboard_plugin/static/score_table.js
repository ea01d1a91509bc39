// Scores of one head: the value at the current step, and a sparkline over all steps.

import { element, svg } from "./dom.js";
import { METRICS, formatScore } from "./metrics.js";

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
        element("th", { scope: "col" }, "score"),
        element("th", { scope: "col" }, "value"),
        element("th", { scope: "col" }, element("div", { className: "steps" }, this.ends[0], "step (log scale)", this.ends[1])),
      ),
    );
    this.node = element("table", { className: "scores" }, head, this.body);
  }

  // `history` is [{step, scores}] sorted by step; `scores` are those at the current step, `step`.
  draw(history, scores, step, layer, head) {
    const steps = history.map((point) => point.step);
    const current = history.findLast((point) => point.step <= step) ?? history[0];
    this.ends[0].textContent = `${steps[0]}`;
    this.ends[1].textContent = `${steps.at(-1)}`;
    const x = (at) => {
      const [first, last] = [Math.log1p(steps[0]), Math.log1p(steps.at(-1))];
      return MARGIN + ((Math.log1p(at) - first) / (last - first || 1)) * (WIDTH - 2 * MARGIN);
    };
    const rows = [];
    for (const [metric, { name, about, isFraction }] of Object.entries(METRICS)) {
      const values = history.map(({ scores }) => scores[metric]?.[layer]?.[head]);
      const finite = values.filter((value) => value != null);
      if (!finite.length) continue;
      const low = isFraction ? 0 : Math.min(...finite);
      const high = isFraction ? 1 : Math.max(...finite);
      const y = (value) => HEIGHT - MARGIN - ((value - low) / (high - low || 1)) * (HEIGHT - 2 * MARGIN);
      const points = values.flatMap((value, i) => (value == null ? [] : [`${x(steps[i]).toFixed(1)},${y(value).toFixed(1)}`]));
      const value = scores[metric]?.[layer]?.[head];
      const line = svg(
        "svg",
        { class: "sparkline", width: WIDTH, height: HEIGHT, role: "img", "aria-label": trend(name, steps, values, metric) },
        svg("line", { x1: x(step), x2: x(step), y1: 0, y2: HEIGHT, class: "current" }),
        svg("polyline", { points: points.join(" ") }),
        ...(value == null ? [] : [svg("circle", { cx: x(current.step), cy: y(value), r: 2.5 })]),
      );
      line.addEventListener("click", (event) => this.onstep(nearest(steps, x, event.offsetX)));
      rows.push(
        element(
          "tr",
          { title: about },
          element("th", { scope: "row" }, name),
          element("td", {}, formatScore(value, metric)),
          element("td", {}, line),
        ),
      );
    }
    this.body.replaceChildren(...rows);
  }
}

function nearest(steps, x, position) {
  return steps.reduce((best, step) => (Math.abs(x(step) - position) < Math.abs(x(best) - position) ? step : best));
}

function trend(name, steps, values, metric) {
  return `${name}: ${formatScore(values[0], metric)} at step ${steps[0]}, ${formatScore(values.at(-1), metric)} at step ${steps.at(-1)}`;
}
