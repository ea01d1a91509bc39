// Validation loss by position in the context: a line per validation, that of the current step bold.

import { element, svg } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, BOTTOM] = [500, 90, 30, 16];

export class LossChart {
  constructor() {
    this.caption = element("span");
    this.chart = element("div", { className: "loss-chart" });
    this.node = element(
      "figure",
      { className: "card losses-by-position", "aria-label": "validation loss by position" },
      element("figcaption", {}, element("span", {}, "validation loss by position"), this.caption),
      this.chart,
    );
  }

  // `validations` is [{step, positions, losses}] sorted by step.
  draw(validations, step) {
    const drawn = validations.filter(({ losses }) => losses.length > 1);
    this.node.hidden = !drawn.length;
    if (!drawn.length) return;
    const current = drawn.findLast((validation) => validation.step <= step) ?? null;
    this.caption.textContent = current ? `nats; bold: step ${current.step}` : `nats; first measured at step ${drawn[0].step}`;
    const values = drawn.flatMap(({ losses }) => losses.filter((loss) => loss !== null));
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const last = Math.max(...drawn.flatMap(({ positions }) => positions));
    const x = (position) => LEFT + (Math.log1p(position) / Math.log1p(last)) * (WIDTH - LEFT - 4);
    const y = (loss) => 6 + ((high - loss) / (high - low || 1)) * (HEIGHT - BOTTOM - 12);
    const line = (validation) =>
      svg("polyline", {
        class: validation === current ? "current" : "",
        "data-step": validation.step,
        points: validation.positions
          .flatMap((at, i) => (validation.losses[i] === null ? [] : [`${x(at).toFixed(1)},${y(validation.losses[i]).toFixed(1)}`]))
          .join(" "),
      });
    const label = (text, left, top, anchor) => {
      const node = svg("text", { x: left, y: top, "text-anchor": anchor });
      node.textContent = text;
      return node;
    };
    const ticks = [0, 1, 10, 100, 1000].filter((position) => position < last * 0.7);
    this.chart.replaceChildren(
      svg(
        "svg",
        { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `validation loss by position, ${drawn.length} validations` },
        label(high.toFixed(1), LEFT - 4, 12, "end"),
        label(low.toFixed(1), LEFT - 4, HEIGHT - BOTTOM - 2, "end"),
        ...ticks.map((position) => label(position, x(position), HEIGHT - 4, "middle")),
        label(last, WIDTH - 4, HEIGHT - 4, "end"),
        ...drawn.filter((validation) => validation !== current).map(line),
        ...(current ? [line(current)] : []),
      ),
    );
  }
}
