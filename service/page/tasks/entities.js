// The texts with their entities marked.

import { count, element, short } from "../dom.js";
import { MOST_TEXTS, firstOf, headline, panel } from "../panel.js";
import { resultsOf } from "../server.js";

export const tag = {
  ask: (asked) => resultsOf("v1/tag", asked, { aggregation_strategy: "simple" }),
  show(results, asked) {
    const kinds = Map.groupBy(results.flat(), (one) => one.entity_group);
    const said = [...kinds].map(([kind, found]) => `${found.length} ${kind}`).join(", ");
    return [
      headline(`${count(results.flat().length, "entity").replace(/ys$/, "ies")}${said && `: ${said}`}.`),
      panel(
        "Entities",
        `with their scores${firstOf(asked.texts)}`,
        ...asked.texts
          .slice(0, MOST_TEXTS)
          .map((text, index) => tagged(text, results[index], asked.cuts.get(index))),
      ),
    ];
  },
  facts: (results) => ({
    numbers: results.flatMap((found, index) =>
      found.map((one) => [`${named(one, index)} ${one.entity_group}`, one.score]),
    ),
    said: results.flatMap((found, index) =>
      found.map((one) => [named(one, index), one.entity_group]),
    ),
  }),
};

const named = (one, index) => `text ${index + 1}, ${one.word} at ${one.start}`;

/** Places count characters, not UTF-16 units. cut: the model read no further. */
function tagged(text, entities, cut) {
  const characters = [...text];
  const end = cut?.at ?? characters.length;
  const between = (from, to) => characters.slice(from, to).join("");
  const parts = [];
  let done = 0;
  for (const { start, end: stop, entity_group: label, score } of entities) {
    const about = element("small", {}, ` ${label} ${short(score)}`);
    parts.push(between(done, start), element("mark", {}, between(start, stop), about));
    done = stop;
  }
  parts.push(between(done, end));
  if (cut) parts.push(element("s", {}, between(end)));
  if (!entities.length) parts.push(element("small", {}, " no entities"));
  return element("p", { class: "tagged" }, ...parts);
}
