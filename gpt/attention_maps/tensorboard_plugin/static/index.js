// The Attention tab. TensorBoard imports this module in an iframe and calls render().
//
// The view is a function of `state`: every control changes the state and calls update(), which draws and writes the
// address. Rows of a map are queries, columns are keys.

import { onAddressChange, readAddress, writeAddress } from "./address.js";
import { SCALES, css, differenceColour, differenceImage } from "./colours.js";
import { Curves } from "./curves.js";
import { fetchRuns } from "./data.js";
import { checkbox, dropdown, element } from "./dom.js";
import { Grid, rangeOf } from "./grid.js";
import { help } from "./help.js";
import { LossChart } from "./loss_chart.js";
import { MapView } from "./map_view.js";
import { METRICS, roleOf } from "./metrics.js";
import { Panel } from "./panel.js";

const POLL_MILLISECONDS = 3000;

const state = {
  layer: null,
  head: null,
  scale: "square root",
  maskFirst: false,
  direction: "query",
  metric: "role",
  sorted: false,
  minimum: null, // heads with a lower score are filtered out
  comparing: false,
  hovered: null, // token under the pointer
  pinned: null, // token that a click has selected
};

// The address to restore: a TensorBoard that has just started may not have read its run yet.
let pendingAddress = null;
const addressDeadline = performance.now() + 20000;

let main, other, difference, differenceNode, differenceNote, headsNote, grid, curves, lossChart, page, status, controls;

export async function render() {
  document.head.append(
    element("link", { rel: "stylesheet", href: new URL("style.css", import.meta.url).href }),
    element("title", {}, "Attention"),
  );
  document.documentElement.lang = "en";
  main = new Panel("main view", update, selectToken);
  other = new Panel("comparison view", update, selectToken);
  other.follow = other.followBox.checked = false;
  difference = new MapView(selectToken);
  grid = new Grid((head) => selectHead(head));
  curves = new Curves((step) => main.goToStep(step));
  lossChart = new LossChart();
  build();
  followTheme();
  document.addEventListener("keydown", keydown);
  pendingAddress = readAddress();
  onAddressChange(() => {
    pendingAddress = readAddress();
    poll();
  });
  while (true) {
    // The iframe has no width while another tab of TensorBoard is selected.
    if (!document.hidden && document.documentElement.clientWidth) await poll();
    await new Promise((resolve) => setTimeout(resolve, POLL_MILLISECONDS));
  }
}

function build() {
  const metrics = Object.fromEntries(Object.entries(METRICS).map(([metric, { name }]) => [metric, name]));
  const scales = Object.fromEntries(Object.keys(SCALES).map((scale) => [scale, scale]));
  const set = (name) => (value) => {
    state[name] = value;
    if (name === "metric") state.minimum = null;
    update();
  };
  const minimum = element("input", { type: "range", min: 0, max: 1, step: 0.01, oninput: () => set("minimum")(minimum.value > minimum.min ? Number(minimum.value) : null) });
  controls = {
    metric: dropdown("Score", { role: "role", ...metrics }, "role", set("metric")),
    sorted: checkbox("sort by score", false, set("sorted")),
    minimum,
    minimumText: element("output"),
    scale: dropdown("Brightness", scales, state.scale, set("scale")),
    direction: dropdown("Selected token is", { query: "the query", key: "the key" }, state.direction, set("direction")),
    maskFirst: checkbox("mask token 0", false, set("maskFirst")),
    compare: checkbox("compare with another step or run", false, (comparing) => {
      state.comparing = comparing;
      update();
    }),
  };
  controls.maskFirst.field.title = "set the weights on token 0 to zero and renormalise each row of the maps; scores do not change";
  status = element("p", { className: "status", role: "status" });
  headsNote = element("p", { className: "note", hidden: true }, "Heads of the first view.");
  const heads = element(
    "section",
    { className: "heads", "aria-label": "heads" },
    element(
      "div",
      { className: "row" },
      controls.metric.field,
      controls.sorted.field,
      element("label", { className: "field" }, "minimum score ", minimum, " ", controls.minimumText),
    ),
    headsNote,
    grid.box,
  );
  differenceNote = element("p", { className: "note map-note" });
  differenceNode = element(
    "section",
    { className: "map-panel difference", "aria-label": "difference map" },
    element("div", { className: "row heading" }, element("h2", {}, "Difference"), element("span", { className: "note" }, "first minus second")),
    differenceNote,
    difference.node,
  );
  curves.node.append(lossChart.node);
  const toolbar = element(
    "div",
    { className: "row toolbar" },
    controls.scale.field,
    controls.direction.field,
    controls.maskFirst.field,
    controls.compare.field,
    element("span", { className: "note legend" }, "Rows: queries. Columns: keys. Grey: masked. Pink frame: importance."),
    help(),
  );
  page = element("main", { hidden: true }, ...main.nodes, ...other.nodes, toolbar, heads, differenceNode, curves.node);
  [main, other].forEach((panel, view) => panel.nodes.forEach((node) => node.classList.add(view ? "second" : "first")));
  document.body.append(status, page);
}

// Polls the server, and draws if anything changed.
async function poll() {
  try {
    const runs = await fetchRuns();
    if (!Object.keys(runs).length) {
      showStatus("There are no attention maps yet. Train with attention_maps.enabled, or run scripts/watch_attention.py.");
      page.hidden = true;
      return;
    }
    let changed = await main.update(runs);
    if (state.comparing) changed = (await other.update(runs)) || changed;
    else other.runs = runs;
    if (pendingAddress?.run && !(pendingAddress.run in runs) && performance.now() < addressDeadline) {
      showStatus(`Waiting for TensorBoard to read the run ${pendingAddress.run}.`);
      return;
    }
    const restored = pendingAddress !== null;
    if (pendingAddress) await restore(pendingAddress, runs);
    pendingAddress = null;
    if (!main.capture) {
      showStatus("Waiting for the first capture.");
      return;
    }
    showStatus("");
    if (page.hidden) window.focus(); // so that keyboard shortcuts work immediately
    if (changed || restored || page.hidden || main.failed || other.failed || grid.failed) {
      page.hidden = false;
      await update();
    }
  } catch (error) {
    showStatus(`TensorBoard does not respond (${error.message}); retrying.`);
  }
}

function showStatus(text) {
  if (status.textContent !== text) status.textContent = text;
  status.hidden = !text;
}

async function restore(address, runs) {
  for (const name of ["scale", "direction", "metric"]) {
    const { select } = controls[name];
    if ([...select.options].some((option) => option.value === address[name])) state[name] = select.value = address[name];
  }
  if (address.mute) state.maskFirst = controls.maskFirst.box.checked = true;
  if (address.sorted) state.sorted = controls.sorted.box.checked = true;
  if (address.compare) state.comparing = controls.compare.box.checked = true;
  if (Number.isFinite(Number(address.atLeast ?? NaN))) state.minimum = Number(address.atLeast);
  await restorePanel(main, address.run, address.probe, address.step);
  if (state.comparing) {
    await other.update(runs);
    await restorePanel(other, address.run2, address.probe2, address.step2);
  }
  for (const name of ["layer", "head"]) if (/^\d+$/.test(address[name] ?? "")) state[name] = Number(address[name]);
  if (/^\d+$/.test(address.token ?? "")) state.pinned = Number(address.token);
}

async function restorePanel(panel, run, tag, step) {
  const given = /^\d+$/.test(step ?? "");
  if (run !== undefined) panel.follow = panel.followBox.checked = !given;
  if (given) panel.step = Number(step);
  if (run in panel.runs) await panel.choose(run, tag);
}

let drawing = null;
let redraw = false;

// Draws `state`; calls during a drawing are merged into one drawing after it.
async function update() {
  if (page.hidden) return;
  if (drawing) {
    redraw = true;
    return drawing;
  }
  drawing = draw().catch((error) => showStatus(`Drawing failed: ${error.message}`));
  await drawing;
  drawing = null;
  if (redraw) {
    redraw = false;
    await update();
  }
}

async function draw() {
  if (!main.capture) return;
  const scores = main.scores;
  if (scores.sink[state.layer]?.[state.head] === undefined) Object.assign(state, initialHead(scores));
  if (state.metric !== "role" && !scores[state.metric]) state.metric = controls.metric.select.value = "role";
  const range = rangeOf(scores, state.metric);
  controls.minimum.min = range.low;
  controls.minimum.max = range.high;
  controls.minimum.step = (range.high - range.low) / 100 || 1;
  controls.minimum.value = Math.max(range.low, state.minimum ?? range.low);
  if (state.pinned >= main.series.size) state.pinned = null;
  controls.minimumText.textContent = Number(controls.minimum.value).toFixed(2);
  const options = { scale: state.scale, maskFirst: state.maskFirst, direction: state.direction, dark: document.body.classList.contains("dark"), announce: state.pinned !== null && !main.playing };
  if (state.comparing && !other.series) {
    await other.update(other.runs);
    await other.choose(main.series.run, main.series.tag);
    other.goTo(0);
  }
  for (const node of [...other.nodes, differenceNode]) node.hidden = !state.comparing;
  page.classList.toggle("comparing", state.comparing);
  page.classList.toggle("many-heads", scores.sink[0].length > 8);
  const selectedToken = state.hovered ?? state.pinned ?? main.series.size - 1;
  const selected = { layer: state.layer, head: state.head };
  const isCompared = state.comparing && other.capture;
  const isSameText = isCompared && JSON.stringify(main.series.metadata.labels) === JSON.stringify(other.series.metadata.labels);
  await Promise.all([
    main.draw(selected, { ...options, isCompared, reference: isSameText ? other.capture.predictions : null }, selectedToken),
    isCompared ? other.draw(selected, { ...options, isCompared }, selectedToken) : null,
    grid.draw(main.series, main.mapCapture, scores, { ...options, metric: state.metric, sorted: state.sorted, minimum: state.minimum }, selected),
  ]);
  headsNote.hidden = !isCompared;
  differenceNote.textContent = isSameText ? "" : "The two texts differ.";
  difference.node.hidden = !isSameText;
  if (isSameText) drawDifference(options, Math.min(selectedToken, main.series.size - 1));
  curves.draw(isCompared ? [main, other] : [main], selected);
  lossChart.draw(main.losses.by_position, main.capture.step);
  if (main.capture) saveAddress();
}

// The first map minus the second, which is of the same text.
function drawDifference(options, selected) {
  const { labels } = main.series.metadata;
  const hasMaps = main.weights && other.weights;
  difference.draw({
    labels,
    nameOf: (token) => main.text.nameOf(token),
    image: hasMaps ? differenceImage(other.weights, main.weights, labels.length, options.scale, options.dark) : null,
    valueAt: (query, key) => main.valueAt(query, key) - other.valueAt(query, key),
    selected,
    direction: options.direction,
    title: "difference of the attention maps",
    fileName: `attention ${main.fileNameOf(main.mapCapture)} minus ${other.fileNameOf(other.mapCapture)} layer ${state.layer} head ${state.head}`,
    scale: {
      colourAt: (position) => css(differenceColour(2 * position - 1, options.dark)),
      ticks: Object.fromEntries([-1, -0.25, 0, 0.25, 1].map((value) => [value, 0.5 + (Math.sign(value) * Math.max(0, SCALES[options.scale](Math.abs(value)))) / 2])),
    },
  });
}

// The initial selection: the head with the highest role score, except sinks and uniform attention.
function initialHead(scores) {
  let best = { layer: 0, head: 0, value: 0 };
  scores.sink.forEach((row, layer) =>
    row.forEach((_, head) => {
      const role = roleOf(scores, layer, head, main.series.size);
      if (role && !["sink", "first token", "uniform"].includes(role.name) && role.value > best.value) best = { layer, head, value: role.value };
    }),
  );
  return { layer: best.layer, head: best.head };
}

function saveAddress() {
  const flag = (on) => (on ? 1 : null);
  const viewOf = (panel) => [panel.series.run, panel.series.tag, panel.follow ? null : panel.capture.step];
  const [run, probe, step] = viewOf(main);
  const [run2, probe2, step2] = state.comparing && other.capture ? viewOf(other) : [null, null, null];
  writeAddress({
    run,
    probe,
    step,
    layer: state.layer,
    head: state.head,
    token: state.pinned,
    scale: state.scale === "square root" ? null : state.scale,
    direction: state.direction === "query" ? null : state.direction,
    metric: state.metric === "role" ? null : state.metric,
    mute: flag(state.maskFirst),
    sorted: flag(state.sorted),
    atLeast: state.minimum,
    compare: flag(state.comparing),
    run2,
    probe2,
    step2,
  });
}

function selectHead({ layer, head }, focus = false) {
  Object.assign(state, { layer, head });
  update();
  if (focus) grid.focus(state);
}

// Hovers or pins a token; pinning the pinned token unpins it, unless `force` is set.
function selectToken(token, pin, force = false) {
  if (pin) {
    state.pinned = token === state.pinned && !force ? null : token;
    state.hovered = null;
  } else if (state.pinned !== null || state.hovered === token) {
    return; // a pinned token stays selected
  } else {
    state.hovered = token;
  }
  update();
}

function keydown(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape") {
    for (const opened of document.querySelectorAll("details[open]")) opened.open = false;
    state.pinned = state.hovered = null;
    return update();
  }
  // A focused control handles its own keys.
  const isSlider = event.target.closest("input[type=range]");
  if (event.target.closest("select, summary") || (isSlider && event.key.startsWith("Arrow"))) return;
  const arrow = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
  if (arrow) selectHead(grid.neighbour(state, ...arrow), grid.node.contains(document.activeElement));
  else if (event.key === ",") main.goBy(-1);
  else if (event.key === ".") main.goBy(1);
  else if (event.key === " " && !event.target.closest("button, input[type=checkbox]")) main.togglePlay();
  else return;
  event.preventDefault();
}

// Follows TensorBoard's dark mode; outside TensorBoard, the system's preference.
function followTheme() {
  const preference = matchMedia("(prefers-color-scheme: dark)");
  let parentBody = null;
  try {
    parentBody = window.parent !== window ? window.parent.document.body : null;
  } catch {
    // the parent page has another origin
  }
  const apply = () => {
    const dark = parentBody ? parentBody.classList.contains("dark-mode") : preference.matches;
    if (document.body.classList.contains("dark") === dark) return;
    document.body.classList.toggle("dark", dark);
    update();
  };
  if (parentBody) new MutationObserver(apply).observe(parentBody, { attributes: true, attributeFilter: ["class"] });
  preference.addEventListener("change", apply);
  apply();
}
