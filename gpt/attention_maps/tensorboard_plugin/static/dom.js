// DOM helpers that set text only as text nodes, so that a token like <script> is never parsed as markup.

export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name in node && !name.includes("-")) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

// A labelled drop-down; `options` maps values to names.
export function dropdown(label, options, value, onchange) {
  const select = element("select", { onchange: () => onchange(select.value) });
  setOptions(select, options, value);
  return { select, field: element("label", { className: "field" }, `${label} `, select) };
}

export function setOptions(select, options, value) {
  const entries = Object.entries(options);
  const same = select.options.length === entries.length && entries.every(([key], i) => select.options[i].value === key);
  if (!same) select.replaceChildren(...entries.map(([key, name]) => element("option", { value: key }, name)));
  select.value = value;
}

export function checkbox(label, checked, onchange) {
  const box = element("input", { type: "checkbox", checked, onchange: () => onchange(box.checked) });
  return { box, field: element("label", { className: "field" }, box, ` ${label}`) };
}
