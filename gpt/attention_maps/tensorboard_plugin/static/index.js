// The Attention tab. TensorBoard imports this in a frame of its own and calls render().
//
// What is shown follows from `state` alone: every control changes it and calls update(), which draws and writes the
// address. Rows of a map are the tokens that read, columns the tokens that are looked at.

import { onAddress, readAddress, writeAddress } from "./address.js";
import { SCALES } from "./colours.js";
import { fetchRuns } from "./data.js";
import { choice, element, tick } from "./dom.js";
import { Grid, rangeOf } from "./grid.js";
import { METRICS, ROLE_FROM, roleOf } from "./metrics.js";
import { Panel } from "./panel.js";

const POLL_MILLISECONDS = 3000;

const state = {
  layer: null,
  head: null,
  scale: "square root",
  mute: false,
  direction: "query",
  metric: "role",
  sorted: false,
  atLeast: null, // a score below which heads are left out
  comparing: false,
  pointed: null, // the token under the pointer, or
  locked: null, // the one that a click has kept
};

// The address that is still to be shown: its run may not have been read yet by a TensorBoard that has just started.
let wanted = null;
const patience = performance.now() + 20000;

let main, other, grid, heads, page, columns, status, controls;

export async function render() {
  document.head.append(
    element("link", { rel: "stylesheet", href: new URL("style.css", import.meta.url).href }),
    element("title", {}, "Attention"),
  );
  document.documentElement.lang = "en";
  main = new Panel("the view", update, point);
  other = new Panel("the view to compare with", update, point);
  other.follow = other.followBox.checked = false;
  grid = new Grid((selected) => select(selected));
  build();
  followTheme();
  document.addEventListener("keydown", keydown);
  wanted = readAddress();
  onAddress(() => {
    wanted = readAddress();
    poll();
  });
  while (true) {
    // The frame has no width while another tab of TensorBoard's is in front.
    if (!document.hidden && document.documentElement.clientWidth) await poll();
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}

function build() {
  const metrics = Object.fromEntries(Object.entries(METRICS).map(([metric, { name }]) => [metric, name]));
  const scales = Object.fromEntries(Object.keys(SCALES).map((scale) => [scale, scale]));
  const set = (name) => (value) => {
    state[name] = value;
    if (name === "metric") state.atLeast = null;
    update();
  };
  const atLeast = element("input", { type: "range", min: 0, max: 1, step: 0.01, oninput: () => set("atLeast")(atLeast.value > atLeast.min ? Number(atLeast.value) : null) });
  controls = {
    metric: choice("Score", { role: "role (the highest)", ...metrics }, "role", set("metric")),
    sorted: tick("sort by it", false, set("sorted")),
    atLeast,
    atLeastText: element("output"),
    scale: choice("Brightness", scales, state.scale, set("scale")),
    direction: choice("A token shows", { query: "where it looks", key: "who looks at it" }, state.direction, set("direction")),
    mute: tick("mute token 0", false, set("mute")),
    compare: tick("compare with another step or run", false, (comparing) => {
      state.comparing = comparing;
      update();
    }),
  };
  controls.mute.field.title = "in the maps, what the first token gets is left out and the others share its weight; scores stay";
  status = element("p", { className: "status", role: "status" });
  heads = element(
    "section",
    { className: "heads", "aria-label": "heads" },
    element(
      "div",
      { className: "row" },
      controls.metric.field,
      controls.sorted.field,
      element("label", { className: "field" }, "at least ", atLeast, " ", controls.atLeastText),
    ),
    grid.node,
  );
  const caution = element(
    "p",
    { className: "caution" },
    "Attention weights say where a head reads, not why the model writes what it writes: they are not explanations " +
      "(Jain and Wallace 2019).",
  );
  columns = element("div", { className: "columns" }, heads, main.node, other.node);
  page = element(
    "main",
    { hidden: true },
    element(
      "div",
      { className: "row looks" },
      controls.scale.field,
      controls.direction.field,
      controls.mute.field,
      controls.compare.field,
    ),
    element("p", { className: "legend" }, "Row: the token that reads. Bright: where it looks. Grey: the future, which it cannot see."),
    columns,
    caution,
    about(),
  );
  document.body.append(status, page);
}

function about() {
  const entries = Object.values(METRICS).flatMap(({ name, about: text }) => [element("dt", {}, name), element("dd", {}, text)]);
  return element(
    "details",
    {},
    element("summary", {}, "Scores and keys"),
    element(
      "p",
      {},
      `A head's role is the highest of previous token, sink, induction and duplicate token, if that is at least ${ROLE_FROM} ` +
        "and, in a short text, twice what a head has that looks everywhere alike. " +
        "Token 0 is the end of text that begins every document; a head that has nothing to do looks there.",
    ),
    element("dl", {}, ...entries),
    element(
      "p",
      {},
      "Arrow keys: another head. Comma and full stop: a capture back or on. Space: play. In the strip of tokens, arrow " +
        "keys: another token. A click keeps a token, Escape lets it go.",
    ),
  );
}

// Ask the server what there is, and draw if that is news.
async function poll() {
  try {
    const runs = await fetchRuns();
    if (!Object.keys(runs).length) {
      say("No attention maps here yet. Train with attention_maps.enabled, or run scripts/watch_attention.py.");
      page.hidden = true;
      return;
    }
    let changed = await main.update(runs);
    if (state.comparing) changed = (await other.update(runs)) || changed;
    else other.runs = runs;
    if (wanted?.run && !(wanted.run in runs) && performance.now() < patience) {
      say(`Waiting for TensorBoard to read the run ${wanted.run}.`);
      return;
    }
    const restored = wanted !== null;
    if (wanted) await restore(wanted, runs);
    wanted = null;
    if (!main.capture) {
      say("The first capture is being written.");
      return;
    }
    say("");
    if (page.hidden) window.focus(); // so that keys work at once
    if (changed || restored || page.hidden || main.failed || other.failed || grid.failed) {
      page.hidden = false;
      await update();
    }
  } catch (error) {
    say(`TensorBoard does not answer (${error.message}); trying again.`);
  }
}

function say(text) {
  if (status.textContent !== text) status.textContent = text;
  status.hidden = !text;
}

async function restore(address, runs) {
  for (const name of ["scale", "direction", "metric"]) {
    const { select } = controls[name];
    if ([...select.options].some((option) => option.value === address[name])) state[name] = select.value = address[name];
  }
  for (const name of ["mute", "sorted"]) if (address[name]) state[name] = controls[name].box.checked = true;
  if (address.compare) state.comparing = controls.compare.box.checked = true;
  if (Number.isFinite(Number(address.atLeast ?? NaN))) state.atLeast = Number(address.atLeast);
  await restorePanel(main, address.run, address.probe, address.step);
  if (state.comparing) {
    await other.update(runs);
    await restorePanel(other, address.run2, address.probe2, address.step2);
  }
  for (const name of ["layer", "head"]) if (/^\d+$/.test(address[name] ?? "")) state[name] = Number(address[name]);
  if (/^\d+$/.test(address.token ?? "")) state.locked = Number(address.token);
}

async function restorePanel(panel, run, tag, step) {
  const given = /^\d+$/.test(step ?? "");
  if (run !== undefined) panel.follow = panel.followBox.checked = !given;
  if (given) panel.step = Number(step);
  if (run in panel.runs) await panel.choose(run, tag);
}

let drawing = null;
let again = false;

// Draw what `state` says; calls while drawing are made up for by one drawing after it.
async function update() {
  if (page.hidden) return;
  if (drawing) {
    again = true;
    return drawing;
  }
  drawing = draw().catch((error) => say(`Could not be drawn: ${error.message}`));
  await drawing;
  drawing = null;
  if (again) {
    again = false;
    await update();
  }
}

async function draw() {
  if (!main.capture) return;
  const scores = main.scores;
  if (scores.sink[state.layer]?.[state.head] === undefined) Object.assign(state, strongest(scores));
  if (state.metric !== "role" && !scores[state.metric]) state.metric = controls.metric.select.value = "role";
  const range = rangeOf(scores, state.metric);
  controls.atLeast.min = range.low;
  controls.atLeast.max = range.high;
  controls.atLeast.step = (range.high - range.low) / 100 || 1;
  controls.atLeast.value = Math.max(range.low, state.atLeast ?? range.low);
  if (state.locked >= main.series.size) state.locked = null;
  controls.atLeastText.textContent = Number(controls.atLeast.value).toFixed(2);
  const look = { scale: state.scale, mute: state.mute, direction: state.direction, dark: document.body.classList.contains("dark"), spoken: state.locked !== null && !main.playing };
  if (state.comparing && !other.series) {
    await other.update(other.runs);
    await other.choose(main.series.run, main.series.tag);
    other.goTo(0);
  }
  other.node.hidden = !state.comparing;
  columns.classList.toggle("comparing", state.comparing);
  const place = state.comparing ? main.node : heads; // beside the map it is seen without scrolling
  if (main.table.node.parentNode !== place) place.append(main.table.node);
  const pointed = state.pointed ?? state.locked ?? main.series.size - 1;
  const selected = { layer: state.layer, head: state.head };
  await Promise.all([
    main.draw(selected, look, pointed),
    state.comparing && other.capture ? other.draw(selected, look, pointed) : null,
    grid.draw(main.series, main.capture, scores, { ...look, metric: state.metric, sorted: state.sorted, atLeast: state.atLeast }, selected),
  ]);
  if (main.capture) remember();
}

// The head with the clearest role is shown first.
function strongest(scores) {
  let best = { layer: 0, head: 0, value: 0 };
  scores.sink.forEach((row, layer) =>
    row.forEach((_, head) => {
      const role = roleOf(scores, layer, head, main.series.size);
      if (role && role.metric !== "sink" && role.value > best.value) best = { layer, head, value: role.value };
    }),
  );
  return { layer: best.layer, head: best.head };
}

function remember() {
  const flag = (on) => (on ? 1 : null);
  const place = (panel) => [panel.series.run, panel.series.tag, panel.follow ? null : panel.capture.step];
  const [run, probe, step] = place(main);
  const [run2, probe2, step2] = state.comparing && other.capture ? place(other) : [null, null, null];
  writeAddress({
    run,
    probe,
    step,
    layer: state.layer,
    head: state.head,
    token: state.locked,
    scale: state.scale === "square root" ? null : state.scale,
    direction: state.direction === "query" ? null : state.direction,
    metric: state.metric === "role" ? null : state.metric,
    mute: flag(state.mute),
    sorted: flag(state.sorted),
    atLeast: state.atLeast,
    compare: flag(state.comparing),
    run2,
    probe2,
    step2,
  });
}

function select({ layer, head }, focus = false) {
  Object.assign(state, { layer, head });
  update();
  if (focus) grid.focus(state);
}

function point(token, lock, force = false) {
  if (lock) {
    state.locked = token === state.locked && !force ? null : token;
    state.pointed = null;
  } else if (state.locked !== null || state.pointed === token) {
    return; // a token that is kept stays
  } else {
    state.pointed = token;
  }
  update();
}

function keydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    state.locked = state.pointed = null;
    return update();
  }
  // A key that the focused control has a use for is the control's.
  const isSlider = event.target.closest("input[type=range]");
  if (event.target.closest("select, summary") || (isSlider && event.key.startsWith("Arrow"))) return;
  const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (arrow) select(grid.neighbour(state, ...arrow), grid.node.contains(document.activeElement));
  else if (event.key === ",") main.goBy(-1);
  else if (event.key === ".") main.goBy(1);
  else if (event.key === " " && !event.target.closest("button, input[type=checkbox]")) main.togglePlay();
  else return;
  event.preventDefault();
}

// TensorBoard marks its own page as dark; elsewhere the system's preference counts.
function followTheme() {
  const preference = matchMedia("(prefers-color-scheme: dark)");
  let around = null;
  try {
    around = window.parent !== window ? window.parent.document.body : null;
  } catch {
    // the page around is another site's
  }
  const apply = () => {
    const dark = around ? around.classList.contains("dark-mode") : preference.matches;
    if (document.body.classList.contains("dark") === dark) return;
    document.body.classList.toggle("dark", dark);
    update();
  };
  if (around) new MutationObserver(apply).observe(around, { attributes: true, attributeFilter: ["class"] });
  preference.addEventListener("change", apply);
  apply();
}
