// The playground: what the reader chose, sent and shown.

import { answerOf } from "./answer.js";
import { LANGUAGES } from "./code.js";
import { byId, choose, chosen, count, element } from "./dom.js";
import { Grid, fieldsOf, laidOut, realCells } from "./grid.js";
import { lengthsOf, linesOf, sequenceOf } from "./lines.js";
import { ROOT, Refused, apiKey, get, inWords, post, useKey } from "./server.js";
import { tasksOf } from "./tasks.js";
import { compare, noVerdict } from "./ways.js";

const TEXTS = ["Pads are dropped.", "Are pads computed? Never."];
const MASKED = ["Pads are [MASK].", "Are pads computed? [MASK]."];
const NAMED = ["Ada lives in London.", "Grace works for the Navy."];
const state = { models: [], entry: null, sequences: [], texts: null, rows: [], typed: 0 };
const RUNNING = "Running";
const CHANGED = "Not compared: the request has changed. Run again.";
let version = 0; // of the request: what was asked about another one is out of date
let runs = 0;
let comparisons = 0;
let waiting; // for the reader to pause
const grid = new Grid(byId("grid"), changed);

let jobs = 0;
/** Says on the page that something is under way; tests wait for its end. */
async function working(work) {
  document.body.dataset.jobs = ++jobs;
  try {
    return await work();
  } finally {
    document.body.dataset.jobs = --jobs;
  }
}

// ---- what is chosen ----

async function start() {
  try {
    state.models = (await get("v1/models", ["data"])).data;
    clear();
  } catch (error) {
    return refuse(error, "GET v1/models");
  }
  if (!state.models.length) return refuse(new Refused("This server serves no model.", 0));
  const embeds = state.models.find((entry) => takesTexts(entry) && entry.tasks.includes("embed"));
  const first = embeds ?? state.models.find(takesTexts) ?? state.models[0];
  byId("model").replaceChildren(...state.models.map(({ id }) => element("option", {}, id)));
  byId("model").value = first.id;
  await useModel();
}

const takesTexts = (entry) => entry.inputs.includes("texts");

/** The model's own defaults, then a first run. */
async function useModel() {
  clearTimeout(waiting);
  const entry = state.models.find(({ id }) => id === byId("model").value);
  state.entry = entry;
  byId("precision").replaceChildren(...entry.precisions.map((name) => element("option", {}, name)));
  byId("certificate").href = new URL(`models/${encodeURIComponent(entry.id)}/certificate`, ROOT);
  byId("query-field").hidden = !entry.tasks.includes("rerank");
  document.querySelector('input[name="kind"][value="texts"]').disabled = !takesTexts(entry);
  choose("kind", takesTexts(entry) ? "texts" : "ids");
  useKind();
  if (await readLines()) await run();
}

function useKind() {
  const ids = chosen("kind") === "ids";
  byId("lines-label").textContent = ids ? "Token ids, a sequence a line" : "Texts, one a line";
  byId("lines").value = ids ? idsShown() : textsShown();
}

/** The ids of what was typed; else some that every model has. */
function idsShown() {
  const { max_positions: longest, vocab_size: size } = state.entry.limits;
  const known = state.sequences.length && state.of === state.entry.id;
  const sequences = known
    ? state.sequences.map(({ ids }) => ids)
    : [4, 6].map((length) =>
        Array.from({ length: Math.min(length, longest) }, (_, at) => (3 * at + 1) % size),
      );
  return sequences.map((ids) => ids.join(" ")).join("\n");
}

function textsShown() {
  const { tasks } = state.entry;
  const fitting = tasks.includes("fill_mask") ? MASKED : tasks.includes("tag") ? NAMED : TEXTS;
  return fitting.join("\n");
}

/** Lines -> sequences -> the grid. false if they cannot be read; the page says why. */
async function readLines() {
  if (!state.entry) return false;
  const asked = ++state.typed;
  outdated(CHANGED);
  const [read, queried] = [byId("lines").value, byId("query").value];
  state.read = null;
  try {
    const found =
      chosen("kind") === "ids"
        ? { sequences: linesOf(read, true).map(sequenceOf), texts: null }
        : await tokenized();
    if (asked !== state.typed) return false; // typed on meanwhile
    Object.assign(state, found, { of: state.entry.id, read, queried });
    clear();
    layOut();
    return true;
  } catch (error) {
    if (asked !== state.typed) return false;
    if (state.of !== state.entry.id) drop();
    refuse(error, "POST v1/tokenize");
    return false;
  }
}

/** The rows of another model are no request to this one. */
function drop() {
  Object.assign(state, { sequences: [], texts: null });
  layOut();
}

async function tokenized() {
  const texts = linesOf(byId("lines").value);
  if (!texts.length) throw new Refused("There is no text: type one a line.", 0);
  const asked = state.entry.tasks.includes("rerank")
    ? texts.map((text) => [byId("query").value, text])
    : texts;
  const body = { model: state.entry.id, texts: asked };
  const { data } = await post("v1/tokenize", body, ["input_ids", "tokens"]);
  const sequences = data.input_ids.map((ids, at) => ({
    ids,
    tokens: data.tokens[at],
    types: data.token_type_ids?.[at] ?? ids.map(() => 0),
  }));
  return { sequences, texts };
}

function layOut() {
  const spare = Math.min(64, Math.max(0, Number(byId("spare").value) || 0));
  const names = state.sequences.flatMap(({ ids, tokens = [] }) =>
    ids.map((id, at) => [id, tokens[at]]),
  );
  state.rows = laidOut(state.sequences, chosen("place"), spare, {
    id: 0,
    token: new Map(names).get(0),
    type: 0,
  });
  grid.show(state.rows);
  const row = Math.min(byId("row").selectedIndex, state.rows.length - 1);
  byId("row").replaceChildren(
    ...state.rows.map((_, index) => element("option", { value: index }, `Row ${index + 1}`)),
  );
  byId("row").selectedIndex = Math.max(0, row);
  byId("lengths").textContent = lengthsOf(state.sequences, state.texts, state.entry.limits);
  changed();
}

function changed() {
  const cells = state.rows.flat();
  const real = realCells(cells).length;
  byId("counts").textContent =
    `${count(state.rows.length, "row")}, ${count(real, "token")}, ${count(cells.length - real, "pad")}`;
  clear();
  outdated(CHANGED);
  showCode();
}

/** What is shown is of an earlier request, and so is what is under way. */
function outdated(why) {
  version += 1;
  comparisons += 1;
  noVerdict(why);
  if (byId("status").textContent === RUNNING) byId("status").textContent = "";
  byId("stale").hidden = !byId("answer").firstChild;
}

// ---- what is sent ----

function body() {
  const { entry, rows } = state;
  const outputs = ["activations", "logits", "pooled", "norm_stats"].filter((name) =>
    entry.outputs.includes(name),
  );
  return {
    model: entry.id,
    ...fieldsOf(rows),
    outputs,
    ...(outputs.includes("logits") && { logits: { top_k: topK() } }),
    ...(entry.precisions.length > 1 && { precision: byId("precision").value }),
  };
}

/** At most five, and no more than there are. */
const topK = () =>
  Math.min(
    5,
    state.entry.labels?.length ?? state.entry.limits.vocab_size,
    state.entry.config.heads?.logits?.width ?? 5,
  );

async function run() {
  const asked = ++runs;
  const of = version;
  comparisons += 1;
  noVerdict("Running…");
  clear();
  byId("status").textContent = RUNNING;
  const { entry, texts } = state;
  const rows = structuredClone(state.rows);
  const [precision, query] = [byId("precision").value, byId("query").value];
  const shown = () => asked === runs && of === version;
  try {
    const given = await post("v1/infer", body(), ["usage"]);
    if (!shown()) return;
    state.given = { given, entry, rows, of, extra: [] };
    showAnswer();
    byId("status").textContent = "The answer is here";
    if (texts) state.given.extra = await tasksOf(entry, precision, texts, query);
    if (shown()) showAnswer();
    if (shown()) await compareBits();
  } catch (error) {
    if (!shown()) return;
    outdated("");
    refuse(error, "POST v1/infer");
  }
}

function showAnswer() {
  const { given, entry, rows, extra } = state.given;
  const row = Math.max(0, byId("row").selectedIndex);
  byId("stale").hidden = state.given.of === version;
  byId("answer").replaceChildren(...answerOf(entry, rows, Math.min(row, rows.length - 1), given));
  byId("answer")
    .querySelector(".results")
    .prepend(...extra);
}

async function compareBits(isAsked = false) {
  const asked = ++comparisons;
  if (!byId("bits").checked && !isAsked) return noVerdict("Not compared: the switch is off.");
  const cells = realCells(state.rows[Math.max(0, byId("row").selectedIndex)] ?? []);
  if (!cells.length) return noVerdict("This row has no real token.");
  const sequence = { ids: cells.map(({ id }) => id), types: cells.map(({ type }) => type) };
  try {
    await compare(sequence, state.entry, byId("precision").value, () => asked === comparisons);
    if (asked === comparisons) clear();
  } catch (error) {
    if (asked === comparisons) refuse(error, "POST v1/infer");
  }
}

// ---- what is said ----

function clear() {
  byId("error").replaceChildren();
  byId("error").classList.remove("shown");
}

/** In the server's own words. path: whose answer was read. */
function refuse(error, path) {
  const { status, code, requestId, message } = inWords(error, path);
  comparisons += 1;
  noVerdict("Not compared: the request failed.");
  const about = [status && `${status} ${code ?? ""}`.trim(), requestId && `request ${requestId}`]
    .filter(Boolean)
    .join(", ");
  byId("error").classList.add("shown");
  byId("error").replaceChildren(
    element("strong", {}, message),
    element("span", { class: "help" }, about),
  );
  byId("status").textContent = "";
  if (status === 401) byId("key").focus();
}

function showCode() {
  if (!state.entry) return;
  if (!state.rows.length) return tell({ code: "" });
  const sequences = state.rows
    .map((row) => realCells(row).map(({ id }) => id))
    .filter((ids) => ids.length);
  const made = LANGUAGES[chosen("language")]({
    url: ROOT.href.replace(/\/$/, ""),
    body: body(),
    sequences,
    texts: isPlain(sequences) ? state.texts : null,
    embeds: state.entry.tasks.includes("embed"),
    takesTexts: takesTexts(state.entry),
    hasKey: Boolean(apiKey()),
  });
  tell(made);
}

function tell({ code, note = "" }) {
  byId("code").textContent = code;
  byId("code-note").textContent = note;
}

/** Texts as they are would be answered, and as the sequences that are sent. */
function isPlain(sequences) {
  const { texts, entry, sequences: typed } = state;
  if (!texts || entry.tasks.includes("rerank")) return false;
  const isShort = typed.every(({ ids }) => ids.length <= entry.limits.max_text_tokens);
  return isShort && JSON.stringify(sequences) === JSON.stringify(typed.map(({ ids }) => ids));
}

async function copy() {
  try {
    await navigator.clipboard.writeText(byId("code").textContent);
    byId("status").textContent = "Copied";
    byId("copy").textContent = "Copied";
    setTimeout(() => (byId("copy").textContent = "Copy"), 1500);
  } catch {
    getSelection().selectAllChildren(byId("code")); // without a secure context only the reader can copy
    byId("status").textContent = "Selected: copy it by the keyboard";
  }
}

// ---- wiring ----

/** Reads the lines when the reader has paused. */
function soon() {
  clearTimeout(waiting);
  outdated(CHANGED);
  waiting = setTimeout(() => working(readLines), 250);
}

/** Reads the lines first if they have changed. false if they cannot be read. */
async function isRead() {
  clearTimeout(waiting);
  const isSame = byId("lines").value === state.read && byId("query").value === state.queried;
  return state.entry && (isSame || (await readLines()));
}

const submit = async () => (await isRead()) && run();
const again = async (isAsked) => (await isRead()) && compareBits(isAsked);

const on = (id, name, act) => byId(id).addEventListener(name, () => working(async () => act()));

on("model", "change", useModel);
on("precision", "change", changed);
on("lines", "input", soon);
on("query", "input", soon);
on("kinds", "change", () => (useKind(), readLines()));
on("places", "change", layOut);
on("spare", "input", layOut);
on("row", "change", () => (state.given && showAnswer(), again()));
on("bits", "change", () => again());
on("again", "click", () => again(true));
on("languages", "change", showCode);
on("copy", "click", copy);
on("request", "submit", submit);
on("key-form", "submit", () => {
  useKey(byId("key").value.trim());
  clear();
  return start();
});
byId("lines").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("request").requestSubmit();
});
for (const id of ["request", "key-form"])
  byId(id).addEventListener("submit", (event) => event.preventDefault());
byId("key").value = apiKey();
working(start);
