// Attention as arcs over the words: what each token takes from which, of one layer and head.

import { element } from "../dom.js";
import { bars, choice, headline, panel, percent, problem, scrolling } from "../panel.js";
import { post } from "../server.js";
import { shape } from "./plane.js";

const MOST_TOKENS = 48; // that are drawn
const [LETTER, GAP, ROW, HIGHEST] = [8.4, 14, 26, 170];
const FAINT = 0.04; // a smaller share has no arc

async function ask({ entry, tokens, layer = 0, head = 0 }) {
  const { ids, types } = tokens[0];
  const body = {
    model: entry.id,
    input_ids: [ids],
    ...(types?.some(Boolean) && { token_type_ids: [types] }),
    outputs: ["attentions"],
    attentions: { layers: [layer], heads: [head] },
    precision: "fp32",
  };
  const { data } = await post("v1/infer", body, ["attentions"]);
  return { weights: data.attentions[0][0][0], layer, head };
}

function show(first, asked) {
  const { n_layers: layers, n_heads: heads } = asked.entry.config;
  const shown = element("div", { class: "results" });
  const [layer, head] = [choice("Layer", layers), choice("Head", heads)];
  let last = 0;
  const again = async () => {
    const number = ++last;
    const chosen = { layer: Number(layer.field.value), head: Number(head.field.value) };
    try {
      const found = await ask({ ...asked, ...chosen });
      if (number === last) shown.replaceChildren(...arcs(found, asked));
    } catch (error) {
      if (number === last) shown.replaceChildren(problem(error.message));
    }
  };
  for (const one of [layer, head]) one.field.addEventListener("change", again);
  shown.append(...arcs(first, asked));
  return [element("div", { class: "fields" }, layer.whole, head.whole), shown];
}

function arcs({ weights, layer, head }, { tokens, texts }) {
  const names = (tokens[0].tokens ?? tokens[0].ids.map(String)).slice(0, MOST_TOKENS);
  const places = [];
  let x = GAP;
  for (const name of names) {
    const width = Math.max(3, [...name].length) * LETTER;
    places.push(x + width / 2);
    x += width + GAP;
  }
  const listed = element("div", { class: "of-text" });
  const lines = names.map((_, from) => shape("g", {}, ...arcsOf(from, weights[from], places)));
  const words = names.map((name, at) =>
    shape("text", { x: places[at], y: HIGHEST + ROW, "text-anchor": "middle", tabindex: at ? -1 : 0, role: "button" }, name),
  );
  const choose = (at) => {
    lines.forEach((group, other) => group.setAttribute("class", other === at ? "chosen" : "other"));
    words.forEach((word, other) => word.setAttribute("tabindex", other === at ? 0 : -1));
    listed.replaceChildren(...taken(names, at, weights[at]));
  };
  words.forEach((word, at) => {
    for (const event of ["pointerenter", "focus", "click"]) word.addEventListener(event, () => choose(at));
  });
  const picture = shape(
    "svg",
    { viewBox: `0 0 ${x} ${HIGHEST + ROW + 12}`, width: x, height: HIGHEST + ROW + 12, class: "arcs", role: "group", "aria-label": "Arcs of attention over the words" },
    ...lines,
    ...words,
  );
  picture.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    words.at((words.indexOf(document.activeElement) + step) % words.length).focus();
  });
  choose(Math.min(1, names.length - 1));
  const cut = tokens[0].ids.length > MOST_TOKENS ? `; the first ${MOST_TOKENS} of ${tokens[0].ids.length} tokens` : "";
  const only = texts.length > 1 ? "; the first text" : "";
  return [panel("Attention", `layer ${layer}, head ${head}, in fp32${only}${cut}`, scrolling("Attention", picture), listed)];
}

function arcsOf(from, weights, places) {
  return places.flatMap((to, at) => {
    if (at === from || weights[at] < FAINT) return [];
    const middle = (places[from] + to) / 2;
    const height = Math.min(HIGHEST - 6, Math.abs(places[from] - to) / 2 + 12);
    const d = `M${places[from]} ${HIGHEST}Q${middle} ${HIGHEST - 2 * height * 0.9} ${to} ${HIGHEST}`;
    return [shape("path", { d, "stroke-width": 1 + 5 * weights[at], "stroke-opacity": Math.min(1, 0.15 + weights[at]) })];
  });
}

function taken(names, at, weights) {
  const found = names.map((name, other) => [name, weights[other]]).sort((a, b) => b[1] - a[1]);
  return [headline(`${names[at]} takes most from ${found[0][0]}, ${percent(found[0][1])}.`), bars(found.slice(0, 6))];
}

export const attention = {
  ask,
  show,
  facts: ({ weights }) => ({
    numbers: weights.flatMap((row, from) => row.map((share, to) => [`token ${from + 1} from ${to + 1}`, share])),
    said: [],
  }),
};
