// Texts as a language model reads them: each token coloured by its log-probability.

import { element, short, styled } from "../dom.js";
import { MOST_TEXTS, firstOf, headline, panel, percent, scrolling, thead } from "../panel.js";
import { post } from "../server.js";

const LOWEST = -10; // log-probability that has the full colour

export const complete = {
  async ask({ entry, precision, texts, ids }) {
    const body = {
      model: entry.id, prompt: ids ?? texts, echo: true, logprobs: 1, max_tokens: 1, temperature: 0,
      ...(precision && { precision }),
    };
    const { choices } = (await post("v1/completions", body, ["choices"])).data;
    return choices.map(({ logprobs }) => ({ ...logprobs, sum: sumOf(logprobs.token_logprobs) }));
  },
  show(results, asked) {
    const found = results[0];
    return [
      headline(`Text 1: ${short(found.sum)} in all, next ${quoted(found.tokens.at(-1))}.`),
      panel(
        "Log-probability of each token",
        `given those before it${firstOf(asked.texts)}`,
        scale(),
        ...results.slice(0, MOST_TEXTS).map((one, index) => coloured(one, index)),
      ),
    ];
  },
  facts: (results) => ({
    numbers: results.flatMap(({ tokens, token_logprobs: logs }, index) =>
      tokens.flatMap((token, at) =>
        logs[at] === null ? [] : [[`text ${index + 1}, token ${at + 1} ${quoted(token)}`, logs[at]]],
      ),
    ),
    said: results.map(({ tokens }, index) => [`text ${index + 1}, next`, quoted(tokens.at(-1))]),
  }),
};

const quoted = (token) => `“${token}”`;

/** Of the text; the last token is the one that would come next. */
const sumOf = (logs) => logs.slice(0, -1).reduce((sum, log) => sum + (log ?? 0), 0);

const shade = (log) => `${Math.round(65 * Math.min(1, log / LOWEST))}%`;

const scale = () =>
  element("p", { class: "scale help" }, "0", element("span", { class: "ramp surprise", "aria-hidden": "true" }), `${LOWEST} and below`);

function coloured({ tokens, token_logprobs: logs, top_logprobs: best, sum }, index) {
  const words = tokens.slice(0, -1).map((token, at) =>
    styled(element("span", { class: "lp", title: about(logs[at], best[at]) }, token), {
      "--share": logs[at] === null ? "0%" : shade(logs[at]),
    }),
  );
  const number = Math.max(1, tokens.length - 2);
  const next = `${quoted(tokens.at(-1))}, ${percent(Math.exp(logs.at(-1)))}`;
  return element(
    "div",
    { class: "of-text" },
    element("p", { class: "tokens" }, ...words),
    element("p", { class: "help" }, `Text ${index + 1}: ${short(sum)} in all, ${short(sum / number)} a token, perplexity ${short(Math.exp(-sum / number))}; next ${next}.`),
    numbers(tokens, logs, best),
  );
}

function about(log, best) {
  if (log === null) return "the first: nothing stands before it";
  const [likeliest, highest] = top(best);
  return `${short(log)}; likeliest: ${quoted(likeliest)} ${short(highest)}`;
}

const top = (best) => Object.entries(best).reduce((one, other) => (other[1] > one[1] ? other : one));

/** Made when it is opened: it may have thousands of rows. */
function numbers(tokens, logs, best) {
  const whole = element("details", {}, element("summary", {}, "As numbers"));
  whole.addEventListener("toggle", () => {
    if (whole.querySelector("table")) return;
    const rows = tokens.slice(0, -1).map((token, at) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, quoted(token)),
        element("td", {}, logs[at] === null ? "" : short(logs[at])),
        element("td", {}, best[at] ? quoted(top(best[at])[0]) : ""),
      ),
    );
    const head = thead(["token", "log-probability", "likeliest"]);
    const table = element("table", { class: "numbers" }, head, element("tbody", {}, ...rows));
    whole.append(scrolling("Log-probabilities", table));
  });
  return whole;
}
