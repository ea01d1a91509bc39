// Elements without markup: text is only ever set as text, so a token like <script> is five letters and two brackets.

export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && !name.includes("-")) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export function svg(tag, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

// A labelled drop-down; `choices` maps values to names.
export function choice(label, choices, value, onchange) {
  const select = element("select", { onchange: () => onchange(select.value) });
  setChoices(select, choices, value);
  return { select, field: element("label", { className: "field" }, `${label} `, select) };
}

export function setChoices(select, choices, value) {
  const entries = Object.entries(choices);
  const same = select.options.length === entries.length && entries.every(([key], i) => select.options[i].value === key);
  if (!same) select.replaceChildren(...entries.map(([key, name]) => element("option", { value: key }, name)));
  select.value = value;
}

export function tick(label, checked, onchange) {
  const box = element("input", { type: "checkbox", checked, onchange: () => onchange(box.checked) });
  return { box, field: element("label", { className: "field" }, box, ` ${label}`) };
}
