// The panel of the five ways: each with its bits, and the verdict over all of them.

import { byId, count, element } from "../dom.js";
import { difference, digest, fiveWays, hex, send } from "./bits.js";

const SHOWN = 3; // numbers whose bits are written out

/** Sends the sequence five ways, one after the other, and shows each as it comes. */
export async function compare(sequence, entry, precision, isCurrent) {
  const ways = fiveWays(sequence, entry.limits);
  const items = ways.map(itemOf);
  byId("ways").replaceChildren(...items.map((item) => item.whole));
  verdict("", "Sending the sequence five ways…");
  const answers = [];
  for (const [index, way] of ways.entries()) {
    const answer = await send(way, entry, precision);
    if (!isCurrent()) return;
    answers.push(answer);
    fill(items[index], answer, index ? difference(answers[0], answer) : null, index === 0);
  }
  conclude(ways, answers, entry, precision);
}

function conclude(ways, answers, entry, precision) {
  const numbers = answers[0].words.length;
  const odd = ways.filter((_, index) => difference(answers[0], answers[index]));
  if (!numbers) return verdict("different", "The answer has no numbers to compare.");
  if (!odd.length)
    return verdict(
      "equal",
      `Equal. ${count(numbers, "number")}, ${(32 * numbers).toLocaleString("en")} bits, the same in all five answers.`,
    );
  const provider = entry.fingerprint_parts?.[precision]?.provider;
  const why =
    provider && provider !== "cpu"
      ? " On a GPU answers agree within a tolerance, not bit by bit."
      : "";
  verdict(
    "different",
    `Not equal. ${odd.map((way) => way.name).join(", ")}: other bits than alone.${why}`,
  );
}

function verdict(kind, text) {
  byId("verdict").className = `verdict ${kind}`;
  if (byId("verdict").textContent !== text) byId("verdict").textContent = text;
}

export function noVerdict(text) {
  byId("ways").replaceChildren();
  verdict("", text);
}

/** Nothing, where the server does not say. */
function costOf(stages) {
  const infer = stages.find(([name]) => name === "infer")?.[1];
  if (infer === undefined) return "";
  return infer ? `computed, ${infer.toFixed(infer < 100 ? 1 : 0)} ms` : "from the server's memory";
}

function itemOf({ name, said, picture }) {
  const bits = element("p", { class: "bits" }, "…");
  const mark = element("p", { class: "mark" });
  const title = element("h3", {}, name, " ", element("small", {}, said));
  return { whole: element("li", {}, element("div", {}, title, picture), bits, mark), bits, mark };
}

function fill({ whole, bits, mark }, answer, found, isFirst) {
  const first = [...answer.words.slice(0, SHOWN)].map(hex).join(" ");
  bits.replaceChildren(
    element("span", { class: "hidden" }, "First bits "),
    element("code", {}, first),
    element("span", { class: "hidden" }, ", digest of all "),
    element("code", { class: "digest" }, digest(answer.words)),
  );
  whole.className = found ? "different" : "equal";
  mark.replaceChildren(
    element("strong", {}, isFirst ? "reference" : found ? "differs" : "equal"),
    element("span", { class: "help" }, costOf(answer.stages)),
  );
  if (found) whole.append(element("p", { class: "found" }, `Differs in ${found.said}.`));
}
