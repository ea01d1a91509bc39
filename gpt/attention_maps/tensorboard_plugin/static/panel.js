// One view: a run, a probe, a step, and the selected head.

import { SCALES, colour, css, imageOf } from "./colours.js";
import { Series, fetchLosses, headMap, rowStart, weight } from "./data.js";
import { dropdown, element, setOptions } from "./dom.js";
import { MapView } from "./map_view.js";
import { formatScore, roleOf } from "./metrics.js";
import { StepSlider } from "./step_slider.js";
import { TextView } from "./text_view.js";

const PLAY_MILLISECONDS = 120;

export class Panel {
  // `onchange()` is called when the run, probe or step changes; `onselect` as in MapView.
  constructor(name, onchange, onselect) {
    this.onchange = onchange;
    this.runs = {};
    this.allSeries = new Map();
    this.series = null;
    this.step = null;
    this.follow = true;
    this.playing = false;
    this.failed = false; // whether the map could not be loaded
    this.losses = { by_position: [] }; // of the run, as fetchLosses returns them
    this.run = dropdown("Run", {}, "", (run) => this.choose(run, null));
    this.probe = dropdown("Probe", {}, "", (tag) => this.choose(this.run.select.value, tag));
    this.slider = new StepSlider(name, (index) => this.goTo(index));
    this.playButton = element("button", { className: "play", onclick: () => this.togglePlay() }, "▶ play");
    this.followBox = element("input", { type: "checkbox", checked: true, onchange: () => this.setFollow(this.followBox.checked) });
    this.timeline = element(
      "section",
      { className: "row timeline", "aria-label": name },
      this.run.field,
      this.probe.field,
      this.playButton,
      element("button", { onclick: () => this.goBy(-1), "aria-label": "previous capture", title: "previous capture" }, "◀"),
      this.slider.node,
      element("button", { onclick: () => this.goBy(1), "aria-label": "next capture", title: "next capture" }, "▶"),
      this.slider.text,
      element("label", { className: "field" }, this.followBox, " follow latest"),
    );
    this.title = element("h2");
    this.badge = element("span", { className: "badge" });
    this.importance = element("span", { className: "badge importance", title: "rise of the loss on this probe without this head" });
    this.measured = element("span", { className: "note measured" });
    this.note = element("p", { className: "note map-note", role: "status" });
    this.map = new MapView(onselect);
    this.text = new TextView(onselect);
    this.mapNode = element(
      "section",
      { className: "map-panel", "aria-label": `map of ${name}` },
      element("div", { className: "row heading" }, this.title, this.badge, this.importance, this.measured),
      this.note,
      this.map.node,
    );
    this.nodes = [this.timeline, this.mapNode, this.text.node];
  }

  get capture() {
    return this.series?.captures[this.index] ?? null;
  }

  // Index of the capture at the current step, or of the last capture before it.
  get index() {
    const captures = this.series?.captures ?? [];
    return this.step === null ? captures.length - 1 : Math.max(0, captures.findLastIndex(({ step }) => step <= this.step));
  }

  // The capture whose maps are shown: the current one, or the last one before it that has maps.
  get mapCapture() {
    return this.series.captures.slice(0, this.index + 1).findLast((capture) => capture.has_maps) ?? null;
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
    const names = {};
    for (const [tag, metadata] of Object.entries(this.runs[this.series.run])) {
      const name = nameOf(metadata);
      const same = Object.values(names).filter((other) => other === name || other.startsWith(`${name} (`)).length;
      names[tag] = same ? `${name} (${same + 1})` : name;
    }
    setOptions(this.probe.select, names, this.series.tag);
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
    if (captures.length) return this.goToStep(captures[Math.min(captures.length - 1, Math.max(0, index))].step);
  }

  goToStep(step) {
    this.step = step;
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

  // `options` is {scale, maskFirst, direction, dark, announce}; when two views are compared, also {isCompared,
  // reference: the predictions to compare with, or null}.
  async draw({ layer, head }, options, selectedToken) {
    const { series, capture, scores, map } = this;
    this.slider.draw(series.captures, this.index, this.losses);
    this.title.textContent = options.isCompared ? `L${layer}H${head}, step ${capture.step}` : `Layer ${layer}, head ${head}`;
    const role = roleOf(scores, layer, head, series.size);
    this.badge.textContent = role ? `${role.name} ${role.value.toFixed(2)}` : "no clear role";
    // Roles and importance are measured at some of the captures.
    const isCurrent = scores.measured_at === undefined || scores.measured_at === capture.step;
    this.measured.textContent = isCurrent ? "" : `(of step ${scores.measured_at})`;
    const importance = scores.mean_ablation ?? scores.zero_ablation;
    this.importance.textContent = importance ? `importance ${formatScore(importance[layer]?.[head], options.isCompared ? "" : "mean_ablation")}` : "";
    this.importance.hidden = !importance;
    const { weights, note } = await this.#load(layer, head, options.maskFirst);
    this.weights = weights;
    this.note.textContent = note; // with the map that it is about
    const token = selectedToken === null || selectedToken >= series.size ? null : selectedToken;
    this.text.draw(series.metadata, this.weights, capture.predictions, options.reference, options, token);
    map.draw({
      labels: series.metadata.labels,
      nameOf: (token) => this.text.nameOf(token),
      image: this.weights && imageOf(this.weights, series.size, options.scale, options.dark),
      valueAt: (query, key) => this.valueAt(query, key),
      selected: token,
      direction: options.direction,
      title: `attention map of layer ${layer}, head ${head}, step ${capture.step}`,
      fileName: `attention ${this.fileNameOf(this.mapCapture)} layer ${layer} head ${head}`,
      scale: {
        colourAt: (brightness) => css(colour(brightness)),
        ticks: Object.fromEntries([0, options.scale === "log" ? 0.01 : 0.05, 0.25, 0.5, 1].map((weight) => [weight, Math.max(0, SCALES[options.scale](weight))])),
      },
    });
  }

  // {weights, note}: the packed map of a head, null with a note that says why if there is none.
  async #load(layer, head, maskFirst) {
    const { series, capture, mapCapture } = this;
    this.failed = false;
    if (capture.scores.sink[layer]?.[head] === undefined) return { weights: null, note: "The model of this run does not have this head." };
    if (!mapCapture) {
      const first = series.captures.find((later) => later.has_maps);
      return { weights: null, note: `This probe has no map up to this step${first ? `; the first one is at step ${first.step}` : ""}.` };
    }
    try {
      const weights = headMap(await series.layer(mapCapture, layer), head, series.size, maskFirst);
      return { weights, note: mapCapture === capture ? "" : `Map of step ${mapCapture.step}: this probe has maps at some of the captures.` };
    } catch (error) {
      this.failed = true;
      return { weights: null, note: `The map could not be loaded (${error.message}); retrying.` };
    }
  }

  // The run, probe and step of a capture, for the name of a file.
  fileNameOf(capture) {
    const probe = this.series.metadata.repeats ? " random sequence" : "";
    return `${this.series.run.replaceAll(/[^\w-]+/g, "_")}${probe} step ${capture?.step}`;
  }

  valueAt(query, key) {
    return weight(this.weights[rowStart(query) + key]);
  }
}

function nameOf({ labels, repeats, generated_from }) {
  if (repeats) return "repeated random sequence";
  const text = labels.slice(1).join("").replaceAll("⋯", "").replaceAll("·", " ").replaceAll("⏎", " ").trim();
  return `“${text.length > 40 ? `${text.slice(0, 40)}…` : text}”${generated_from === null ? "" : " continued"}`;
}
