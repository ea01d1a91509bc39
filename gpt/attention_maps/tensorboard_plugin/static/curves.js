// Curves over steps: each score of the selected head, and the losses on the two copies of the random sequence.

import { element, svg } from "./dom.js";
import { METRICS, formatScore } from "./metrics.js";

const [WIDTH, HEIGHT, MARGIN] = [100, 30, 3]; // of the drawing, which is stretched to the card

export class Curves {
  // `onstep(step)` is called with the step that is clicked.
  constructor(onstep) {
    this.onstep = onstep;
    this.cards = element("div", { className: "cards" });
    this.axis = element("p", { className: "note" });
    this.node = element("section", { className: "curves", "aria-label": "scores over steps" }, this.axis, this.cards);
  }

  // `views` are one or two of {history: [{step, scores}], scores: at its current step, step, losses: {tag: [[step, nats]]}}.
  draw(views, { layer, head }) {
    const steps = views.flatMap(({ history }) => history.map((point) => point.step));
    const [first, last] = [Math.min(...steps), Math.max(...steps)];
    this.x = (step) => MARGIN + ((Math.log1p(step) - Math.log1p(first)) / (Math.log1p(last) - Math.log1p(first) || 1)) * (WIDTH - 2 * MARGIN);
    this.steps = [...new Set(steps)];
    const colours = views.length > 1 ? " Orange: first view, blue: second." : "";
    this.axis.textContent = `Layer ${layer}, head ${head}, steps ${first} to ${last} on a log scale.${colours} Click: go to the step.`;
    const copies = views.flatMap(({ losses }) => [losses.first_copy ?? [], losses.second_copy ?? []]);
    const shown = views.map(({ losses, step }) => [losses.first_copy, losses.second_copy].map((line) => valueAt(line, step)?.toFixed(2) ?? "–").join(", "));
    const cards = [this.#card("repeated sequence: loss on copy 1, 2 (dashed)", "repeated random sequence: mean loss in nats on its first copy, which is not predictable, and on the second", copies, shown, views, null, "wide")];
    for (const [metric, { name, about, unit, isFraction }] of Object.entries(METRICS)) {
      const lines = views.map(({ history }) => history.map(({ step, scores }) => [step, scores[metric]?.[layer]?.[head]]));
      const values = views.map(({ scores }) => formatScore(scores[metric]?.[layer]?.[head]));
      cards.push(this.#card(name, about + (unit ? `, in ${unit}` : ""), lines, values, views, isFraction ? [0, 1] : null));
    }
    this.cards.replaceChildren(...cards.filter(Boolean));
  }

  // A card with curves, or null without values.
  #card(name, about, lines, values, views, range, className = "") {
    const points = lines.map((line) => line.filter(([, value]) => value != null));
    const all = points.flat().map(([, value]) => value);
    if (!all.length) return null;
    const [low, high] = range ?? [Math.min(...all), Math.max(...all)];
    const y = (value) => HEIGHT - MARGIN - ((value - low) / (high - low || 1)) * (HEIGHT - 2 * MARGIN);
    const ends = points.map((line) => (line.length ? `${line[0][1].toFixed(2)} at step ${line[0][0]}, ${line.at(-1)[1].toFixed(2)} at step ${line.at(-1)[0]}` : ""));
    const perView = lines.length / views.length;
    const drawing = svg(
      "svg",
      { class: "sparkline", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${name}: ${ends.join("; ")}` },
      ...views.map(({ step }, view) => svg("line", { x1: this.x(step), x2: this.x(step), y1: 0, y2: HEIGHT, class: `current view-${view}` })),
      ...points.map((line, i) =>
        svg("polyline", {
          class: `view-${views.length > 1 ? Math.floor(i / perView) : "only"} line-${i % perView}`,
          points: line.map(([step, value]) => `${this.x(step).toFixed(2)},${y(value).toFixed(2)}`).join(" "),
        }),
      ),
    );
    const shown = element("b", {}, values.join(" | "));
    const read = (step) => lines.map((line) => valueAt(line, step)?.toFixed(2) ?? "–").join(", ");
    drawing.addEventListener("pointermove", (event) => (shown.textContent = `step ${this.#stepAt(event)}: ${read(this.#stepAt(event))}`));
    drawing.addEventListener("pointerleave", () => (shown.textContent = values.join(" | ")));
    drawing.addEventListener("click", (event) => this.onstep(this.#stepAt(event)));
    return element("figure", { className: `card ${className}`, title: about }, element("figcaption", {}, element("span", {}, name), shown), drawing);
  }

  // The captured step that is nearest to the pointer.
  #stepAt({ offsetX, currentTarget }) {
    const x = (offsetX / currentTarget.clientWidth) * WIDTH;
    return this.steps.reduce((best, step) => (Math.abs(this.x(step) - x) < Math.abs(this.x(best) - x) ? step : best));
  }
}

// The last value of a curve at or before a step.
export function valueAt(line, step) {
  return line?.findLast(([at, value]) => at <= step && value != null)?.[1] ?? null;
}
