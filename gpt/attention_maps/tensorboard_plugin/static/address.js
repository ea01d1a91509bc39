// The view is stored in the URL fragment of the top-level page, so that it can be shared:
// #attention&p.attention.run=quickstart&p.attention.step=720 (TensorBoard's convention for plugin data).

const PREFIX = "p.attention.";

function topWindow() {
  try {
    window.parent.location.hash; // throws if the parent page has another origin
    return window.parent;
  } catch {
    return window;
  }
}

export function readAddress() {
  const parts = new URLSearchParams(topWindow().location.hash.replace(/^#/, ""));
  const entries = [...parts].filter(([name]) => name.startsWith(PREFIX));
  return Object.fromEntries(entries.map(([name, value]) => [name.slice(PREFIX.length), value]));
}

// Calls back when the user changes the address, not when writeAddress does.
export function onAddressChange(callback) {
  topWindow().addEventListener("hashchange", () => Object.keys(readAddress()).length && callback());
}

export function writeAddress(values) {
  const { history, location } = topWindow();
  if (topWindow() !== window && !/^#attention\b/.test(location.hash)) return; // another tab is selected
  const kept = Object.entries(values).filter(([, value]) => value !== null && value !== undefined);
  const parts = kept.map(([name, value]) => `${PREFIX}${name}=${encodeURIComponent(value)}`);
  const hash = `#${["attention", ...parts].join("&")}`;
  if (hash !== location.hash) history.replaceState(history.state, "", hash);
}
