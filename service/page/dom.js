// Makes elements. Text goes in as text; nothing here reads HTML or sets style attributes.

export const byId = (id) => document.getElementById(id);

/** element("td", {class: "pad", onclick: f}, "text", otherElement) */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/** Sets CSS properties, which the page's policy allows to scripts. */
export function styled(made, properties) {
  for (const [name, value] of Object.entries(properties)) made.style.setProperty(name, value);
  return made;
}

export const chosen = (name) => document.querySelector(`input[name="${name}"]:checked`)?.value;

export function choose(name, value) {
  const input = document.querySelector(`input[name="${name}"][value="${value}"]`);
  if (input) input.checked = true;
}

export function card(title, ...inside) {
  return element("section", { class: "card" }, element("h2", {}, title), ...inside);
}

export const folded = (title, ...inside) =>
  element("details", {}, element("summary", {}, title), ...inside);

export const count = (number, noun) =>
  `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;

/** About four significant digits. */
export function short(number) {
  if (number === 0) return "0";
  const size = Math.abs(number);
  if (size >= 1e5 || size < 1e-3) return number.toExponential(1);
  return number.toFixed(size < 1 ? 4 : Math.max(0, 3 - Math.floor(Math.log10(size))));
}
