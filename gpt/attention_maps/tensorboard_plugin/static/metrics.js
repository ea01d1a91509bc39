// Head scores; gpt/attention_maps/head_metrics.py has their definitions and sources.

export const METRICS = {
  previous_token: { name: "previous token", isFraction: true, isRole: true, about: "mean weight on the previous token" },
  sink: { name: "sink", isFraction: true, isRole: true, about: "mean weight on token 0, the attention sink" },
  induction: {
    name: "induction",
    isFraction: true,
    isRole: true,
    about: "repeated random sequence: mean weight on the token after the earlier copy",
  },
  duplicate_token: {
    name: "duplicate token",
    isFraction: true,
    isRole: true,
    about: "repeated random sequence: mean weight on the earlier copy of the token",
  },
  normalised_entropy: { name: "norm. entropy", isFraction: true, about: "entropy divided by its maximum; 1 is uniform attention" },
  entropy: { name: "entropy", unit: "nats", about: "mean attention entropy of the queries" },
  distance: { name: "distance", unit: "tokens", about: "mean attention distance from query to key" },
  mean_ablation: { name: "importance", unit: "nats", about: "rise of the loss on this probe with the head's output replaced by its mean" },
  zero_ablation: { name: "importance (zero)", unit: "nats", about: "rise of the loss on this probe with the head's output replaced by zero" },
  max_logit: { name: "largest logit", about: "largest attention logit; unbounded growth is a sign of divergence" },
};

export const MIN_ROLE_SCORE = 0.3;

// {name, value} of a head's role, or null if it has none. Event files of earlier versions have no roles: there it is
// the highest score that reaches the threshold. A text of few tokens has a higher threshold, because uniform attention
// has weight 1/(i+1) on the token before token i.
export function roleOf(scores, layer, head, size) {
  if (scores.roles) {
    const role = scores.roles[layer]?.[head];
    return role ? { name: role[0], value: role[1] } : null;
  }
  let uniform = 0;
  for (let query = 1; query < size; query++) uniform += 1 / (query + 1) / (size - 1);
  const threshold = Math.min(0.9, Math.max(MIN_ROLE_SCORE, 2 * uniform));
  let best = null;
  for (const [metric, { name, isRole }] of Object.entries(METRICS)) {
    const value = scores[metric]?.[layer]?.[head];
    if (isRole && value != null && value >= threshold && value > (best?.value ?? 0)) best = { name, value };
  }
  return best;
}

const MIN_LARGEST_IMPORTANCE = 0.05; // nats: below this, no head of the model is important

// Importance of a head as a part of the largest, 0..1; null if it was not measured.
export function importanceOf(scores, layer, head) {
  const rises = scores.mean_ablation ?? scores.zero_ablation;
  if (rises?.[layer]?.[head] == null) return null;
  return Math.max(0, rises[layer][head]) / Math.max(MIN_LARGEST_IMPORTANCE, ...rises.flat());
}

export function formatScore(value, metric) {
  if (value == null) return "–";
  const unit = METRICS[metric]?.unit;
  return value.toFixed(2).replace("-0.00", "0.00") + (unit ? ` ${unit}` : "");
}
