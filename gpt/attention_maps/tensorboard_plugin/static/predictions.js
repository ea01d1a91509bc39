// What the model predicts: the text, coloured by the loss of each token, and the likeliest tokens at one place.

import { element } from "./dom.js";

const MAX_NATS = 6; // the strongest colour; a uniform guess among bytes has 5.5

export class Predictions {
  // `onselect` as in HeadView.
  constructor(onselect) {
    this.onselect = onselect;
    this.strip = element("div", { className: "strip losses", onpointerleave: () => onselect(null, false) });
    this.text = element("p", { className: "summary" });
    this.caption = element("span");
    this.node = element(
      "section",
      { className: "predictions", "aria-label": "predictions" },
      element("h3", {}, "Predictions ", this.caption),
      this.strip,
      this.text,
    );
  }

  // `predictions` is {losses, likeliest, probabilities}; with a `reference`, the strip shows the difference to it.
  draw({ labels }, predictions, selected, reference = null) {
    this.node.hidden = !predictions;
    if (!predictions) return;
    const compared = reference?.losses.length === predictions.losses.length ? reference : null;
    this.caption.textContent = compared
      ? "loss of each token minus that in the first view: blue is lower, orange is higher"
      : `loss of each token: white is 0, orange is ${MAX_NATS} nats or more`;
    if (this.strip.childElementCount !== labels.length) this.#build(labels.length);
    [...this.strip.children].forEach((span, token) => {
      const loss = predictions.losses[token - 1] ?? null;
      const shown = loss === null || !compared ? loss : loss - compared.losses[token - 1];
      span.textContent = labels[token];
      span.style.background = shown === null ? "" : shade(shown);
      span.title = loss === null ? "" : `${token} “${labels[token]}”: loss ${loss.toFixed(2)} nats`;
      span.setAttribute("aria-selected", String(token === selected));
    });
    this.text.textContent = describe(labels, predictions, selected ?? labels.length - 1);
  }

  #build(size) {
    const spans = Array.from({ length: size }, (_, token) =>
      element("span", { className: "token", onpointerenter: () => this.onselect(token, false), onclick: () => this.onselect(token, true) }),
    );
    this.strip.replaceChildren(...spans);
  }
}

function shade(nats) {
  const strength = Math.min(1, Math.abs(nats) / MAX_NATS).toFixed(3);
  return nats < 0 ? `rgba(66, 133, 244, ${strength})` : `rgba(234, 88, 12, ${strength})`;
}

// The prediction for a token is made after the one before it; after the last one, it is for the next.
function describe(labels, { losses, likeliest, probabilities }, token) {
  const at = (place) =>
    likeliest[place].map((label, i) => `“${label}” ${probabilities[place][i]?.toFixed(2) ?? "–"}`).join("  ");
  const parts = [];
  if (token > 0) {
    const loss = losses[token - 1];
    const actual = loss === null ? "its loss is not finite" : `probability ${Math.exp(-loss).toFixed(3)}, loss ${loss.toFixed(2)} nats`;
    parts.push(`${token} “${labels[token]}” has ${actual}; the model would write ${at(token - 1)}.`);
  }
  if (token === 0 || token === labels.length - 1) parts.push(`After “${labels[token]}” it would write ${at(token)}.`);
  return parts.join(" ");
}
