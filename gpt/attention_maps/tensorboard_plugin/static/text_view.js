// The text of a probe: each token's attention weight as its background and its loss as a bar below it; for the selected
// token, what it attends to and what the model predicts there.

import { element } from "./dom.js";
import { SCALES, colour, css, textColourOn } from "./colours.js";
import { weightsOf } from "./data.js";

const MAX_NATS = 6; // the highest bar; a uniform guess among bytes has 5.5
const BAR_PIXELS = 10;

export class TextView {
  // `onselect` as in MapView; a third argument keeps a pinned token pinned.
  constructor(onselect) {
    this.onselect = onselect;
    this.legend = element("span", { className: "note" });
    this.strip = element("div", { className: "strip", tabIndex: 0, role: "listbox", "aria-label": "tokens" });
    this.attention = element("p", { className: "summary attention" });
    this.prediction = element("p", { className: "summary prediction" });
    this.node = element("section", { className: "text-view", "aria-label": "text" }, this.legend, this.strip, this.attention, this.prediction);
    this.strip.addEventListener("keydown", (event) => this.#keydown(event));
    this.strip.addEventListener("pointerleave", () => onselect(null, false));
  }

  // `map` and `predictions` are null if they were not written; with `reference` predictions, bars show the difference
  // of the losses. `options` is {scale, direction, announce}; `selected` is a token.
  draw(metadata, map, predictions, reference, options, selected) {
    Object.assign(this, { metadata, predictions, selected });
    this.size = metadata.labels.length;
    // Screen readers announce a pinned token, but not hovered tokens or playback.
    for (const node of [this.attention, this.prediction]) node.setAttribute("aria-live", options.announce ? "polite" : "off");
    const compared = predictions && reference;
    const weights = map && selected !== null ? weightsOf(map, this.size, selected, options.direction) : null;
    this.legend.replaceChildren(...this.#legend(compared));
    if (this.strip.childElementCount !== this.size) this.#build();
    [...this.strip.children].forEach((span, token) => this.#drawToken(span, token, weights, compared, options));
    this.strip.setAttribute("aria-activedescendant", selected === null ? "" : this.strip.children[selected].id);
    this.attention.textContent = weights ? this.#describeAttention(weights, options.direction) : "";
    this.prediction.textContent = predictions ? this.#describePrediction() : "";
  }

  // Index, label and, for a part of a character, the character.
  nameOf(token) {
    const character = this.metadata.characters[token];
    return `${token} “${this.metadata.labels[token]}”${character ? ` (part of ${character})` : ""}`;
  }

  #legend(compared) {
    const bar = element("span", { className: "loss-key" });
    const meaning = compared ? "loss minus that of the second view (blue: lower)" : `loss, up to ${MAX_NATS} nats`;
    const long = (text) => element("span", { className: "long" }, text);
    return [long("Background: attention weight. "), ...(this.predictions ? ["Bar ", bar, `: ${meaning}. `] : []), long("Click: pin a token.")];
  }

  #lossOf(token, predictions = this.predictions) {
    return predictions?.losses[token - 1] ?? null; // the first token has no prediction before it
  }

  #drawToken(span, token, weights, compared, options) {
    const { metadata, selected } = this;
    const label = metadata.labels[token];
    if (span.textContent !== label) span.textContent = label;
    const weight = weights && !Number.isNaN(weights[token]) ? weights[token] : null;
    const loss = this.#lossOf(token);
    const shown = loss === null || !compared ? loss : loss - (this.#lossOf(token, compared) ?? NaN);
    const shade = weight === null ? null : colour(SCALES[options.scale](weight));
    span.title = [this.nameOf(token), weight === null ? "" : `weight ${weight.toFixed(3)}`, loss === null ? "" : `loss ${loss.toFixed(2)} nats`].filter(Boolean).join(", ");
    const height = Number.isFinite(shown) ? BAR_PIXELS * Math.min(1, Math.abs(shown) / MAX_NATS) : 0;
    const layer = (paint, at, size) => `linear-gradient(${paint}, ${paint}) ${at} / 100% ${size} no-repeat`;
    const bar = layer(shown < 0 ? "var(--lower)" : "var(--loss)", "bottom", `${height.toFixed(2)}px`);
    span.style.background = shade ? `${bar}, ${layer(css(shade), "top", `calc(100% - ${BAR_PIXELS}px)`)}` : bar;
    span.style.color = shade ? textColourOn(shade) : "";
    span.setAttribute("aria-selected", String(token === selected));
    span.classList.toggle("generated", metadata.generated_from !== null && token >= metadata.generated_from);
  }

  #build() {
    const id = (TextView.count = (TextView.count ?? 0) + 1);
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

  #describeAttention(weights, direction) {
    const top = [...weights.keys()].filter((token) => weights[token] >= 0.005).sort((a, b) => weights[b] - weights[a]);
    const most = top.slice(0, 3).map((token) => `${this.nameOf(token)} ${weights[token].toFixed(2)}`);
    const subject = this.nameOf(this.selected);
    if (!most.length) return `${subject}: all attention weights are 0.`;
    const verb = direction === "query" ? "attends to" : "is attended to by";
    return `${subject} ${verb} ${most.join(", ")}${top.length > 3 ? ", …" : ""}`;
  }

  // What the model writes after the token, and how well it predicted the token itself, after the one before it.
  #describePrediction() {
    const { likeliest, probabilities } = this.predictions;
    const token = this.selected ?? this.size - 1;
    const at = (place) => likeliest[place].map((label, i) => `“${label}” ${formatProbability(probabilities[place][i])}`).join("  ");
    const after = `After ${this.nameOf(token)} the model predicts ${at(token)}.`;
    if (token === 0) return after;
    const loss = this.#lossOf(token);
    const actual = loss === null ? "a loss that is not finite" : `probability ${formatProbability(Math.exp(-loss))}, loss ${loss.toFixed(2)} nats`;
    return `${after} ${this.nameOf(token)} itself had ${actual}; predicted there: ${at(token - 1)}.`;
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

function formatProbability(probability) {
  if (probability == null) return "–";
  return probability >= 0.01 || probability === 0 ? probability.toFixed(2) : probability.toPrecision(1);
}
