// What pictures of answers are made of: panels, facts, shares as bars.

import { element, short, styled } from "./dom.js";

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

/** [[name, share of 1]] as a list with bars. */
export const bars = (pairs) =>
  element(
    "ul",
    { class: "bars" },
    ...pairs.map(([name, share]) =>
      element("li", {}, element("span", {}, name), bar(share), element("b", {}, percent(share))),
    ),
  );

export const bar = (share, kind = "") =>
  element(
    "span",
    { class: `meter ${kind}`, "aria-hidden": "true" },
    styled(element("i"), { width: `${Math.min(100, 100 * Math.max(0, share))}%` }),
  );
