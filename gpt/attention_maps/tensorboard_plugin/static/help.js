// The help of the tab: definitions and keyboard shortcuts.

import { element } from "./dom.js";
import { METRICS, MIN_ROLE_SCORE } from "./metrics.js";

export function help() {
  const entries = Object.values(METRICS).flatMap(({ name, about }) => [element("dt", {}, name), element("dd", {}, about)]);
  const paragraphs = [
    "Rows of a map are queries, columns are keys, brightness is attention weight; grey keys are in the future and masked.",
    "Attention weights show which tokens a head reads, not why the model predicts a token: they are not explanations " +
      "(Jain and Wallace 2019). Importance is causal: the rise of the loss on this probe when the head's output is " +
      "replaced by its mean over the positions, measured at every eighth capture and the last.",
    "A head's role is the kind of token with the largest mean attention weight on windows of the validation split, if " +
      `that is at least ${MIN_ROLE_SCORE} and three times that of uniform attention. Token 0 is the end-of-text that ` +
      "begins every document; many heads use it as an attention sink.",
    "Arrow keys: select a head. Comma and full stop: previous and next capture. Space: play. In the text, arrow keys: " +
      "select a token. Click: pin a token. Escape: unpin it.",
  ];
  return element(
    "details",
    { className: "help" },
    element("summary", {}, "Help"),
    element("div", {}, ...paragraphs.map((text) => element("p", {}, text)), element("dl", {}, ...entries)),
  );
}
