// What is shown is part of the address of the page around this frame, so that a view can be shared:
// #attention&p.attention.run=quickstart&p.attention.step=720 (TensorBoard's own convention for a plugin's data).

const PREFIX = "p.attention.";

function page() {
  try {
    window.parent.location.hash; // throws where the page around is another site's
    return window.parent;
  } catch {
    return window;
  }
}

export function readAddress() {
  const parts = new URLSearchParams(page().location.hash.replace(/^#/, ""));
  const own = [...parts].filter(([name]) => name.startsWith(PREFIX));
  return Object.fromEntries(own.map(([name, value]) => [name.slice(PREFIX.length), value]));
}

// Call back when a person has changed the address; writeAddress does not count.
export function onAddress(changed) {
  page().addEventListener("hashchange", () => Object.keys(readAddress()).length && changed());
}

export function writeAddress(values) {
  const { history, location } = page();
  if (page() !== window && !/^#attention\b/.test(location.hash)) return; // another tab is in front
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  const parts = kept.map(([name, value]) => `${PREFIX}${name}=${encodeURIComponent(value)}`);
  const hash = `#${["attention", ...parts].join("&")}`;
  if (hash !== location.hash) history.replaceState(history.state, "", hash);
}
