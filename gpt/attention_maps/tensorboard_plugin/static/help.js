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
    "Roles: previous token, k tokens back, itself (the query's own position), same token (an earlier equal one), first " +
      "token (an attention sink), induction (the token after an earlier equal one, on the repeated random sequence), " +
      "uniform. A head's role is the kind of token with the largest mean attention weight on windows of the validation split, if " +
      `that is at least ${MIN_ROLE_SCORE} and three times that of uniform attention, measured at the same captures as ` +
      "importance. Scores are measured on the probe at every capture; induction and duplicate token on the repeated " +
      "random sequence. Token 0 is the end-of-text that " +
      "begins every document; many heads use it as an attention sink.",
    "Arrow keys: select a head. Comma and full stop: previous and next capture. Space: play. In the text, arrow keys: " +
      "select a token. Click: pin a token. Escape: unpin it.",
  ];
  const details = element(
    "details",
    { className: "help" },
    element("summary", {}, "Help"),
    element("div", {}, ...paragraphs.map((text) => element("p", {}, text)), element("dl", {}, ...entries)),
  );
  document.addEventListener("click", ({ target }) => !details.contains(target) && (details.open = false));
  return details;
}
