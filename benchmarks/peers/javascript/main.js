// Unmodified npm packages with nothing but a URL, a key and a model set.
//
// `node main.js URL KEY [NAME ...]` makes the calls that are named, or all. Its last line is, as JSON,
// what came of each: null, or an error. A page calls `outcomes(url, key, names)`. Vectors must have
// the bits, results the order and the scores, that the server's plain route gives.

import { EMBEDDERS, MODEL, PROMPTS, QUERY, RANKER, RANKERS, SCALED, TEXTS } from "./calls.js";
import { isPage } from "./clients.js";
import { OTHERS } from "./others.js";
import { mustEqual, mustHaveBits, ranking, scaled, vectors } from "./plain.js";
import { README, README_AT_ROOT } from "./readme.js";

async function embeds(at, name) {
  const model = name in PROMPTS ? `${MODEL}:${PROMPTS[name]}` : MODEL;
  const plain = SCALED.includes(name) ? scaled : vectors;
  mustHaveBits(await EMBEDDERS[name](at), await plain(at, model, TEXTS));
}

async function ranks(at, name) {
  mustEqual(await RANKERS[name](at), await ranking(at, RANKER, QUERY, TEXTS));
}

async function outcome(at, name) {
  try {
    if (name in EMBEDDERS) await embeds(at, name);
    else if (name in RANKERS) await ranks(at, name);
    else await { ...README, ...README_AT_ROOT, ...OTHERS }[name](at);
    return null;
  } catch (error) {
    return String(error?.stack ?? error);
  }
}

// chroma's import node's modules, llamaindex's does not pass on that a page may have a key
const NOT_IN_PAGES = ["@chroma-core/", "@llamaindex/"];
const ALL = Object.keys({ ...EMBEDDERS, ...RANKERS, ...README, ...OTHERS }).filter(
  (name) => !isPage || !NOT_IN_PAGES.some((beginning) => name.startsWith(beginning)),
);

// All at once: in company the bits are the same, and one that tries again and again holds up no other.
async function outcomes(url, key, names) {
  const called = (names.length ? names : ALL).map(async (name) => [
    name,
    await outcome({ url, key }, name),
  ]);
  return Object.fromEntries(await Promise.all(called));
}

if (isPage) globalThis.outcomes = outcomes;
else {
  const [url, key, ...names] = process.argv.slice(2);
  console.log(JSON.stringify(await outcomes(url, key, names)));
}
