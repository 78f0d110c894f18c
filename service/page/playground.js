// The playground: what the reader chose, sent to the model's task, and its answer.

import { byId, choose, chosen, element } from "./dom.js";
import { cutNotes, linesOf, sequenceOf, tokensOf } from "./lines.js";
import { tabbed } from "./panel.js";
import { ROOT, Refused, apiKey, get, inWords, useKey } from "./server.js";
import { SAMPLES, TASKS, kindsOf, takesTexts, tasksOf } from "./tasks/catalog.js";

const PLACES = ["key-error", "error", "answer-error", "inside-error"];
const INPUT = [400, 404, 413, 422]; // statuses that tell of what was typed
const state = { models: [], entry: null, given: null, inside: null, tab: "tab-answer" };
let version = 0; // of the request: what was asked about another one is out of date
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
    if (!state.models.length) throw new Refused("This server serves no model.", 503);
    clear();
  } catch (error) {
    return refuse(error, "GET v1/models");
  }
  const ids = state.models.map(({ id }) => id);
  byId("model").replaceChildren(...ids.map((id) => element("option", {}, id)));
  await restore();
}

/** What the address says after #, and the models' own defaults. */
async function restore() {
  const said = new URLSearchParams(location.hash.slice(1));
  const named = state.models.find(({ id }) => id === said.get("model"));
  const embeds = state.models.find((entry) => takesTexts(entry) && entry.tasks[0] === "embed");
  const first = named ?? embeds ?? state.models.find(takesTexts) ?? state.models[0];
  byId("model").value = first.id;
  await fitModel(said);
  showTab(said.get("tab") ?? "tab-answer");
  await run();
}

/** The fields of a model; said: values that a link has for them. */
async function fitModel(said = new URLSearchParams()) {
  const entry = state.models.find(({ id }) => id === byId("model").value);
  state.entry = entry;
  options("precision", entry.precisions, said.get("precision") ?? entry.default_precision);
  byId("certificate").href = new URL(`models/${encodeURIComponent(entry.id)}/certificate`, ROOT);
  const own = tasksOf(entry);
  const others = Object.keys(TASKS).filter((task) => !own.includes(task));
  const group = (label, tasks) =>
    element("optgroup", { label }, ...tasks.map((task) => element("option", { value: task }, TASKS[task].name)));
  byId("task").replaceChildren(group("This model", own), group("Not in this bundle", others));
  byId("task").value = TASKS[said.get("task")] ? said.get("task") : own[0];
  for (const id of ["prompt", "query-prompt"])
    options(id, ["", ...Object.keys(entry.prompts)], said.get(id) ?? promptOf(entry, id));
  for (const option of document.querySelectorAll('#prompts option[value=""]'))
    option.textContent = entry.default_prompt_name ? `default (${entry.default_prompt_name})` : "none";
  const kinds = kindsOf(entry);
  if (kinds[0] === "vectors") state.vectors = await import("./tasks/tensors.js");
  for (const input of document.querySelectorAll('input[name="kind"]')) {
    input.disabled = !kinds.includes(input.value);
    input.parentElement.hidden = (input.value === "vectors") !== (kinds[0] === "vectors");
  }
  choose("kind", kinds.includes(said.get("kind")) ? said.get("kind") : kinds[0]);
  fitTask(said);
}

const options = (id, values, value) => {
  byId(id).replaceChildren(...values.map((one) => element("option", { value: one }, one)));
  byId(id).value = values.includes(value) ? value : values[0];
};

const PROMPTS = {
  prompt: ["document", "passage", "corpus", "search_document"],
  "query-prompt": ["query", "search_query"],
};
const promptOf = (entry, id) => PROMPTS[id].find((name) => name in entry.prompts) ?? "";

/** The fields of a task. What the reader typed stays; samples are changed with it. */
function fitTask(said = new URLSearchParams()) {
  const task = byId("task").value;
  const { query, ids } = TASKS[task];
  byId("query-field").hidden = !query;
  byId("query-label").textContent = query === "optional" ? "Query (optional)" : "Query";
  document.querySelector('input[name="kind"][value="ids"]').disabled = !ids || !kindsOf(state.entry).includes("ids");
  if (!ids && takesTexts(state.entry)) choose("kind", "texts");
  fitLines(said.get("lines"));
  if (said.has("query") || isSample(byId("query").value, "query"))
    byId("query").value = said.get("query") ?? SAMPLES[task].query ?? "";
}

const LABELS = {
  texts: "Texts, one a line",
  ids: "Token ids, a sequence a line",
  vectors: "Vectors, a sequence a line",
};

function fitLines(given) {
  const kind = chosen("kind");
  byId("prompts").hidden = kind !== "texts" || !TASKS[byId("task").value].prompts || !Object.keys(state.entry.prompts).length;
  byId("lines-label").textContent = LABELS[kind];
  const typed = byId("lines").value;
  if (given === null && !isSample(typed, "lines") && state.kind === kind) return;
  if (kind !== "texts" && state.kind === "texts") state.kept = typed; // until the reader comes back to texts
  const texts = () => (state.kind !== "texts" && state.kept) || SAMPLES[byId("task").value].lines;
  byId("lines").value = given ?? { texts, ids: idsShown, vectors: () => state.vectors.sample(state.entry.limits) }[kind]();
  state.kind = kind;
  state.sampleIds = kind === "texts" ? "" : byId("lines").value;
}

const isSample = (typed, field) =>
  !typed || typed === state.sampleIds || Object.values(SAMPLES).some((one) => one[field] === typed);

/** The ids of what was typed; else some that every model has. */
function idsShown() {
  const { max_positions: longest, vocab_size: size, pad_id: pad } = state.entry.limits;
  const real = (id) => (id === pad ? (id + 1) % size : id);
  const { asked } = state.given ?? {};
  const known = asked?.tokens && asked.entry.id === state.entry.id && asked.task !== "rerank";
  const sequences = known
    ? asked.tokens.map(({ ids }) => ids)
    : [4, 6, 5].map((length, row) =>
        Array.from({ length: Math.min(length, longest) }, (_, at) => real(((3 + row) * at + 1) % size)),
      );
  return sequences.map((ids) => ids.join(" ")).join("\n");
}

/** The request as it stands in the fields; null where there is no text. Throws Refused. */
function read() {
  const { entry } = state;
  const kind = chosen("kind");
  const texts = linesOf(byId("lines").value, kind === "ids");
  if (!texts.length) return null;
  const task = byId("task").value;
  const hasPrompts = TASKS[task].prompts && kind === "texts"; // a prompt is a text
  return {
    entry,
    task,
    texts,
    ids: kind === "ids" ? texts.map(sequenceOf) : null,
    vectors: kind === "vectors" ? texts.map(state.vectors.vectorsOf) : null,
    query: TASKS[task].query ? byId("query").value.trim() : "",
    precision: entry.precisions.length > 1 ? byId("precision").value : undefined,
    prompt: (hasPrompts && byId("prompt").value) || undefined,
    queryPrompt: (hasPrompts && byId("query-prompt").value) || undefined,
    cuts: state.given?.asked.texts.join("\n") === texts.join("\n") ? state.given.asked.cuts : new Map(),
  };
}

// ---- the answer ----

const viewOf = async (task) => (await import(`./tasks/${TASKS[task].file}.js`))[task];

async function run() {
  const mine = ++version;
  clear();
  const isCurrent = () => mine === version;
  const task = byId("task").value;
  if (!state.entry) return;
  state.inside?.changed(true);
  if (!tasksOf(state.entry).includes(task)) return lacking(task);
  try {
    const asked = read();
    if (!asked) return empty();
    if (TASKS[task].query === "needed" && !asked.query)
      throw new Refused("There is no query: type one.", 400);
    byId("status").textContent = "Running";
    byId("answer").classList.add("outdated");
    const [view, found] = await Promise.all([viewOf(task), lengthsOf(asked)]);
    Object.assign(asked, found);
    const data = await view.ask(asked);
    if (!isCurrent()) return;
    state.given = { asked, view, data };
    showAnswer();
    if (byId("changes").firstChild) await compare();
  } catch (error) {
    if (isCurrent()) empty(error);
  }
}

const lengthsOf = async (asked) =>
  asked.ids || asked.vectors
    ? { tokens: (asked.ids ?? asked.vectors).map((ids) => ({ ids })), cuts: new Map() }
    : tokensOf(asked, asked.task === "rerank" ? asked.texts.map((text) => [asked.query, text]) : asked.texts);

function showAnswer() {
  const { asked, view, data } = state.given;
  const other = otherPrecision(asked);
  byId("stale").hidden = true;
  byId("answer").classList.remove("outdated");
  byId("answer").replaceChildren(...view.show(data, asked));
  byId("cuts").replaceChildren(...cutNotes(asked));
  byId("after").hidden = false;
  byId("compare").hidden = !other;
  byId("compare").textContent = `What does ${other} change?`;
  byId("status").textContent = "The answer is here";
  showCode();
}

/** No answer: the box is empty, or the request failed. */
function empty(error) {
  state.given = null;
  byId("stale").hidden = true;
  byId("after").hidden = true;
  byId("answer").classList.remove("outdated");
  for (const id of ["cuts", "changes", "status"]) byId(id).replaceChildren();
  byId("answer").replaceChildren(
    ...(error ? [] : [element("p", { class: "help" }, "Type a text, and its answer comes here.")]),
  );
  showCode();
  if (error) refuse(error, "the server");
}

async function lacking(task) {
  empty();
  const { missing } = await import("./share/missing.js");
  if (byId("task").value !== task) return;
  const { why, command } = missing(state.entry, task);
  byId("answer").replaceChildren(
    element("p", { class: "headline" }, `${state.entry.id} has no task “${TASKS[task].name}”.`),
    element("p", {}, why),
    element("pre", { class: "code", tabindex: 0 }, element("code", {}, command)),
  );
}

/** Attention is always that of fp32. */
const otherPrecision = ({ entry, task, precision }) =>
  entry.precisions.find((name) => precision && task !== "attention" && name !== precision);

async function compare() {
  const { asked, view, data } = state.given;
  const mine = version;
  try {
    const { changes } = await import("./precision.js");
    const made = await changes(view, asked, data, otherPrecision(asked));
    if (mine === version) byId("changes").replaceChildren(...made);
  } catch (error) {
    if (mine === version) refuse(error, "the server");
  }
}

// ---- what is said ----

function clear() {
  for (const place of PLACES) {
    byId(place).replaceChildren();
    byId(place).classList.remove("shown");
  }
}

/** In the server's own words, where they belong. path: whose answer was read. */
function refuse(error, path, place) {
  const found = inWords(error, path);
  const { status, code, requestId, message } = found;
  const isKey = status === 401 || status === 403;
  const at = isKey ? "key-error" : (place ?? (INPUT.includes(status) ? "error" : "answer-error"));
  const about = [status && code && `${status} ${code}`, requestId && `request ${requestId}`].filter(Boolean);
  byId(at).replaceChildren(
    element("strong", {}, message),
    ...(about.length ? [element("span", { class: "help" }, about.join(", "))] : []),
  );
  byId(at).classList.add("shown");
  if (isKey) byId("key").focus();
}

/** Something was typed: what is shown is of an earlier request. */
function changed() {
  version += 1;
  byId("answer").classList.remove("outdated");
  if (!linesOf(byId("lines").value).length) {
    clear();
    return empty();
  }
  byId("stale").hidden = !state.given;
  showCode();
  state.inside?.changed();
}

// ---- code, link, picture ----

const share = () => import("./share/share.js");

/** Its callers do not wait. */
function showCode() {
  if (state.tab !== "tab-copy") return;
  let asked = null;
  try {
    asked = read();
  } catch {} // the box says it
  const isServed = asked && tasksOf(asked.entry).includes(asked.task);
  return working(async () => (await share()).showCode(isServed ? asked : null));
}

// ---- wiring ----

async function tabChosen(id) {
  state.tab = id;
  if (id === "tab-copy") return showCode();
  if (id !== "tab-inside") return;
  const { inside, styles } = await import("./inside/inside.js");
  await styles;
  state.inside ??= inside(read, working, (error, path) => refuse(error, path, "inside-error"));
  await state.inside.opened();
}

const showTab = tabbed(byId("tabs"), (id) => working(() => tabChosen(id)));
const on = (id, name, act) => byId(id).addEventListener(name, (event) => working(async () => act(event)));

on("model", "change", async () => (await fitModel(), run()));
on("task", "change", () => (fitTask(), run()));
for (const id of ["precision", "prompt", "query-prompt"]) on(id, "change", run);
on("kinds", "change", () => (fitLines(null), run()));
for (const id of ["lines", "query"]) on(id, "input", changed);
on("languages", "change", async () => (await share()).showProgram());
on("copy", "click", async () => (await share()).copy());
on("compare", "click", compare);
on("link", "click", async () => (await share()).link(state.tab));
for (const kind of ["svg", "png"]) on(kind, "click", async () => (await share()).save(kind));
on("request", "submit", async () => {
  await run();
  const { top } = byId("tabs").getBoundingClientRect();
  if (top > innerHeight / 2) byId("tabs").scrollIntoView(); // on a phone the answer is below
});
on("key-form", "submit", () => {
  useKey(byId("key").value.trim());
  return start();
});
byId("lines").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) byId("request").requestSubmit();
});
for (const id of ["request", "key-form"])
  byId(id).addEventListener("submit", (event) => event.preventDefault());
addEventListener("hashchange", () => location.hash.includes("=") && working(restore)); // else it is a place
byId("key").value = apiKey();
working(start);
