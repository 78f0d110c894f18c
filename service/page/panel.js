// What pictures of answers are made of: panels, facts, numbers as bars, tabs.

import { element, short, styled } from "./dom.js";

export const MOST_TEXTS = 50; // that an answer shows

export const panel = (title, said, ...inside) =>
  element(
    "section",
    { class: "result" },
    element("h3", {}, title, " ", element("small", {}, said)),
    ...inside,
  );

export const fact = (name, value) =>
  element("div", {}, element("dt", {}, name), element("dd", {}, value));

export const percent = (share) => `${short(100 * share)} %`;

export const headline = (...said) => element("p", { class: "headline" }, ...said);

export const problem = (message) => element("p", { class: "found", role: "alert" }, message);

/** [[name, number]] as a list with bars. most: the number of a full bar. */
export const bars = (pairs, written = percent, most = 1) =>
  element(
    "ul",
    { class: pairs.some(([name]) => (name.textContent ?? name).length > 24) ? "bars long" : "bars" },
    ...pairs.map(([name, number]) =>
      element(
        "li",
        {},
        element("span", { class: "name" }, name),
        bar(number / most),
        element("b", {}, written(number)),
      ),
    ),
  );

export const bar = (share, kind = "") =>
  element(
    "span",
    { class: `meter ${kind}`, "aria-hidden": "true" },
    styled(element("i"), { width: `${Math.min(100, 100 * Math.max(0, share))}%` }),
  );

/** What is wider than the page scrolls in itself. */
export const scrolling = (label, inside) =>
  element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, inside);

export const thead = (names) =>
  element(
    "thead",
    {},
    element("tr", {}, ...names.map((name) => element("th", { scope: "col" }, name))),
  );

/** A select of the numbers below `most`, with its label. */
export function choice(name, most) {
  const options = Array.from({ length: most }, (_, at) => element("option", { value: at }, String(at)));
  const field = element("select", { id: `lens-${name.toLowerCase()}` }, ...options);
  const label = element("label", { for: field.id }, name);
  return { field, whole: element("div", { class: "narrow" }, label, field) };
}

/** The first words of a text, and whether the model read it whole. */
export const textOf = ({ texts, cuts }, index, length = 120) =>
  element(
    "span",
    { class: "said" },
    texts[index].length > length ? `${texts[index].slice(0, length)}…` : texts[index],
    cuts.has(index) ? element("small", { class: "cut" }, " cut") : null,
  );

/** "; the first 50 of 200 texts", where there are more than are shown. */
export const firstOf = (texts, most = MOST_TEXTS) =>
  texts.length > most ? `; the first ${most} of ${texts.length} texts` : "";

/** One part for each text that is shown: its words, then what shown(index) makes. */
export const byText = (asked, shown) =>
  asked.texts
    .slice(0, MOST_TEXTS)
    .map((_, index) =>
      element("div", { class: "of-text" }, element("h4", {}, textOf(asked, index)), shown(index)),
    );

/** Makes the buttons of a tablist choose their panels. chosen(id of the tab) is called after. */
export function tabbed(list, chosen) {
  const tabs = [...list.querySelectorAll('[role="tab"]')];
  const choose = (tab) => {
    for (const one of tabs) {
      const isChosen = one === tab;
      one.setAttribute("aria-selected", isChosen);
      one.tabIndex = isChosen ? 0 : -1;
      document.getElementById(one.getAttribute("aria-controls")).hidden = !isChosen;
    }
    chosen?.(tab.id);
  };
  list.addEventListener("click", (event) => {
    const tab = event.target.closest('[role="tab"]');
    if (tab) choose(tab);
  });
  list.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const open = tabs.filter((tab) => !tab.hidden);
    if (!step) return;
    const next = open.at((open.indexOf(document.activeElement) + step) % open.length);
    next.focus();
    choose(next);
  });
  return (id) => choose(tabs.find((tab) => tab.id === id) ?? tabs[0]);
}
