// One view: a run, a probe, a step, and the selected head.

import { dropdown, element, setOptions } from "./dom.js";
import { Series, fetchLosses, headMap } from "./data.js";
import { HeadView } from "./head_view.js";
import { LossChart } from "./loss_chart.js";
import { formatScore, roleOf } from "./metrics.js";
import { Predictions } from "./predictions.js";
import { ScoreTable } from "./score_table.js";

const PLAY_MILLISECONDS = 120;

export class Panel {
  // `onchange()` is called when the run, probe or step changes; `onselect` as in HeadView.
  constructor(name, onchange, onselect) {
    this.onchange = onchange;
    this.runs = {};
    this.allSeries = new Map();
    this.series = null;
    this.step = null;
    this.follow = true;
    this.playing = false;
    this.failed = false; // whether the map could not be loaded
    this.run = dropdown("Run", {}, "", (run) => this.choose(run, null));
    this.probe = dropdown("Probe", {}, "", (tag) => this.choose(this.run.select.value, tag));
    this.slider = element("input", {
      type: "range",
      min: 0,
      max: 0,
      step: 1,
      className: "slider",
      "aria-label": `step of ${name}`,
      oninput: () => this.goTo(Number(this.slider.value)),
    });
    this.stepText = element("span", { className: "step" });
    this.playButton = element("button", { onclick: () => this.togglePlay() }, "▶ play");
    this.followBox = element("input", { type: "checkbox", checked: true, onchange: () => this.setFollow(this.followBox.checked) });
    this.title = element("h2");
    this.badge = element("span", { className: "badge" });
    this.losses = []; // by position, of each validation of the run
    this.lossChart = new LossChart();
    this.importance = element("span", { className: "badge importance", title: "rise of the loss on this probe without this head" });
    this.note = element("p", { className: "note", role: "status" });
    this.view = new HeadView(onselect);
    this.predictions = new Predictions(onselect);
    this.table = new ScoreTable((step) => this.goTo(this.series.captures.findIndex((capture) => capture.step >= step)));
    this.node = element(
      "section",
      { className: "panel", "aria-label": name },
      element("div", { className: "row" }, this.run.field, this.probe.field),
      element(
        "div",
        { className: "row" },
        this.playButton,
        element("button", { onclick: () => this.goBy(-1), "aria-label": "previous capture", title: "previous capture" }, "◀"),
        this.slider,
        element("button", { onclick: () => this.goBy(1), "aria-label": "next capture", title: "next capture" }, "▶"),
        this.stepText,
        element("label", { className: "field" }, this.followBox, " follow latest"),
      ),
      element("div", { className: "row heading" }, this.title, this.badge, this.importance),
      this.note,
      this.view.node,
      this.predictions.node,
      this.table.node,
      this.lossChart.node,
    );
  }

  get capture() {
    return this.series?.captures[this.index] ?? null;
  }

  // Index of the capture at the current step, or of the last capture before it.
  get index() {
    const captures = this.series?.captures ?? [];
    return this.step === null ? captures.length - 1 : Math.max(0, captures.findLastIndex(({ step }) => step <= this.step));
  }

  // Scores per step; scores that only the repeated random sequence defines come from that series.
  get history() {
    return this.series.captures.map(({ step, scores }) => ({ step, scores: { ...this.#randomScores(step), ...scores } }));
  }

  get scores() {
    return { ...this.#randomScores(this.capture.step), ...this.series.scoresAt(this.capture.step) };
  }

  #randomScores(step) {
    const { induction, duplicate_token } = this.repeatedRandom?.scoresAt(step) ?? {};
    return induction ? { induction, duplicate_token } : {};
  }

  // Takes the server's current list of runs, and reads new captures of the series shown.
  async update(runs) {
    this.runs = runs;
    for (const [key, { run, tag }] of this.allSeries) if (!runs[run]?.[tag]) this.allSeries.delete(key);
    const names = Object.keys(runs).sort();
    setOptions(this.run.select, Object.fromEntries(names.map((name) => [name, name])), this.series?.run ?? "");
    if (!this.series || !runs[this.series.run]?.[this.series.tag]) {
      const latest = (run) => Math.max(...Object.values(runs[run]).map((metadata) => metadata.last_wall_time));
      const run = this.series && runs[this.series.run] ? this.series.run : names.sort((a, b) => latest(b) - latest(a))[0];
      return this.#show(run, null);
    }
    this.#listProbes();
    return this.#refresh();
  }

  // Shows another run or probe; without a tag, the run's latest text.
  async choose(run, tag) {
    if (await this.#show(run, tag)) this.onchange();
  }

  async #show(run, tag) {
    const tags = this.runs[run] ?? {};
    const order = Object.keys(tags).sort((a, b) => tags[a].repeats - tags[b].repeats || tags[b].last_wall_time - tags[a].last_wall_time);
    const chosen = tags[tag] ? tag : order[0];
    if (!chosen) return false;
    this.series = this.#seriesOf(run, chosen);
    const randomTag = order.find((other) => tags[other].repeats);
    this.repeatedRandom = randomTag ? this.#seriesOf(run, randomTag) : null;
    this.#listProbes();
    await this.#refresh();
    return true;
  }

  #seriesOf(run, tag) {
    const key = JSON.stringify([run, tag]);
    if (!this.allSeries.has(key)) this.allSeries.set(key, new Series(run, tag, this.runs[run][tag]));
    return this.allSeries.get(key);
  }

  #listProbes() {
    const tags = this.runs[this.series.run];
    setOptions(
      this.probe.select,
      Object.fromEntries(Object.entries(tags).map(([tag, metadata]) => [tag, `${tag.replace(/^attention\//, "")} · ${preview(metadata)}`])),
      this.series.tag,
    );
    this.run.select.value = this.series.run;
  }

  async #refresh() {
    const shown = [...new Set([this.series, this.repeatedRandom])].filter((series) => series && this.runs[series.run]?.[series.tag]);
    const changed = await Promise.all(
      shown.map((series) => series.refresh(this.runs[series.run][series.tag].last_wall_time)),
    );
    if (this.follow) this.step = this.series.captures.at(-1)?.step ?? null;
    if (changed.some(Boolean) || this.lossesOf !== this.series.run) this.losses = await fetchLosses(this.series.run);
    this.lossesOf = this.series.run;
    return changed.some(Boolean);
  }

  goTo(index) {
    const captures = this.series?.captures ?? [];
    if (!captures.length) return;
    this.step = captures[Math.min(captures.length - 1, Math.max(0, index))].step;
    this.#setFollow(false);
    return this.onchange();
  }

  goBy(count) {
    return this.goTo(this.index + count);
  }

  setFollow(follow) {
    this.#setFollow(follow);
    if (follow) this.step = this.series?.captures.at(-1)?.step ?? null;
    this.onchange();
  }

  #setFollow(follow) {
    this.follow = follow;
    this.followBox.checked = follow;
  }

  togglePlay() {
    this.playing = !this.playing;
    if (this.playing) this.#play();
  }

  // Waits for each capture to be drawn before requesting the next one.
  async #play() {
    this.playButton.textContent = "❚❚ pause";
    const atEnd = () => this.index >= this.series.captures.length - 1;
    if (atEnd()) await this.goTo(0);
    while (this.playing && !atEnd()) {
      await Promise.all([this.goBy(1), new Promise((resolve) => setTimeout(resolve, PLAY_MILLISECONDS))]);
    }
    this.playing = false;
    this.playButton.textContent = "▶ play";
  }

  // `options` is {scale, maskFirst, direction, dark, reference}: the predictions to compare with.
  async draw({ layer, head }, options, selectedToken) {
    const { series, capture } = this;
    this.slider.max = series.captures.length - 1;
    this.slider.value = this.index;
    this.slider.setAttribute("aria-valuetext", `step ${capture.step}`);
    this.stepText.textContent = `step ${capture.step} (${this.index + 1} of ${series.captures.length})`;
    const inRange = capture.scores.sink[layer]?.[head] !== undefined;
    this.title.textContent = `Layer ${layer}, head ${head}`;
    const role = roleOf(this.scores, layer, head, series.size);
    this.badge.textContent = role ? `${role.name} ${role.value.toFixed(2)}` : "no clear role";
    this.badge.dataset.role = role?.name ?? "";
    const importance = this.scores.mean_ablation ?? this.scores.zero_ablation;
    this.importance.textContent = importance ? `importance ${formatScore(importance[layer]?.[head], "mean_ablation")}` : "";
    this.importance.hidden = !importance;
    this.table.draw(this.history, this.scores, capture.step, layer, head);
    this.lossChart.draw(this.losses, capture.step);
    let map = null;
    this.failed = false;
    this.note.textContent = "";
    if (!inRange) {
      this.note.textContent = "The model of this run does not have this head.";
    } else if (!capture.has_maps) {
      this.note.textContent = "This probe has scores at every step, and maps at the last step only.";
    } else {
      try {
        map = headMap(await series.layer(capture, layer), head, series.size, options.maskFirst);
      } catch (error) {
        this.failed = true;
        this.note.textContent = `The map could not be loaded (${error.message}); retrying.`;
      }
    }
    const token = selectedToken === null || selectedToken >= series.size ? null : selectedToken;
    this.predictions.draw(series.metadata, capture.predictions, token, options.reference);
    this.view.draw(series.metadata, map, options, token, `attention map of layer ${layer}, head ${head}, step ${capture.step}`);
  }
}

function preview({ labels, repeats }) {
  if (repeats) return "repeated random sequence";
  const text = labels.slice(1).join("").replaceAll("·", " ").replaceAll("⏎", " ").trim();
  return text.length > 36 ? `${text.slice(0, 36)}…` : text;
}
