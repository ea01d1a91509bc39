// The scores of a head: gpt/attention_maps/head_metrics.py has the definitions and sources.

export const METRICS = {
  previous_token: { name: "previous token", share: true, role: true, about: "mean weight on the token just before" },
  sink: { name: "sink", share: true, role: true, about: "mean weight on token 0, where a head looks that has nothing to do" },
  induction: {
    name: "induction",
    share: true,
    role: true,
    about: "on random tokens that come twice: mean weight on what followed the same token the first time",
  },
  duplicate_token: {
    name: "duplicate token",
    share: true,
    role: true,
    about: "on random tokens that come twice: mean weight on the first copy of the token itself",
  },
  normalised_entropy: { name: "evenness", share: true, about: "entropy as a share of the largest possible; 1 looks everywhere alike" },
  entropy: { name: "entropy", unit: "nats", about: "how widely a token looks, on average" },
  distance: { name: "distance", unit: "tokens", about: "how far back a token looks, on average" },
  max_logit: { name: "largest logit", about: "the largest number that went into the softmax; growth without end is a sign of divergence" },
};

export const ROLE_FROM = 0.3;

// {metric, value} of the role that fits a head best in a text of so many tokens, or null where none fits. A text of few
// tokens asks for more: a head that looks everywhere alike has 1/(i+1) on the token before token i.
export function roleOf(scores, layer, head, size) {
  let even = 0;
  for (let query = 1; query < size; query++) even += 1 / (query + 1) / (size - 1);
  const from = Math.min(0.9, Math.max(ROLE_FROM, 2 * even));
  let best = null;
  for (const [metric, { role }] of Object.entries(METRICS)) {
    const value = scores[metric]?.[layer]?.[head];
    if (role && value != null && value >= from && value > (best?.value ?? 0)) best = { metric, value };
  }
  return best;
}

export function show(value, metric) {
  if (value == null) return "–";
  const unit = METRICS[metric]?.unit;
  return value.toFixed(2) + (unit ? ` ${unit}` : "");
}
