// Look inside: the sequences as they are sent, their mask, and what the model computes of them.

import { byId, chosen, count, element } from "../dom.js";
import { tabbed } from "../panel.js";
import { post } from "../server.js";
import { measured } from "./measured.js";
import { outputsOf } from "./bits.js";
import { Grid, fieldsOf, laidOut, realCells } from "./grid.js";
import { compare, noVerdict } from "./ways.js";

const CHANGED = "Not compared: the request has changed. Send it again.";
const MOST_ROWS = 8; // texts that are looked into
const MOST_CELLS = 2048; // of the grid, unless one text alone has more

/** Its styles, which the first paint does without. */
export const styles = new Promise((done) => {
  const href = new URL("inside.css", import.meta.url);
  document.head.append(element("link", { rel: "stylesheet", href, onload: done, onerror: done }));
});

const TABS = {
  ways: "Five ways", mask: "Mask", activations: "Activations", norms: "LayerNorms", cost: "Time, fingerprint",
};

/** The tabs, and the panels that are empty at first. */
function frame() {
  for (const [name, label] of Object.entries(TABS)) {
    const tab = { type: "button", role: "tab", id: `in-${name}`, "aria-controls": `of-${name}` };
    byId("inside-tabs").append(element("button", tab, label));
    const panel = { id: `of-${name}`, class: "view", role: "tabpanel", "aria-labelledby": tab.id };
    if (!byId(panel.id)) byId("view-inside").append(element("div", panel));
  }
  tabbed(byId("inside-tabs"))("in-ways");
}

/** read: the request as it stands; working: runs what tests wait for; refuse: says an error. */
export function inside(read, working, refuse) {
  const state = { rows: [], asked: null, given: null, isRead: false };
  let version = 0; // of what is sent
  let comparisons = 0;
  const grid = new Grid(byId("grid"), edited);
  frame();

  const isOpen = () => !byId("view-inside").hidden;

  /** The request on the left has changed; isSent: its answer is wanted too. */
  async function changed(isSent = false) {
    state.isRead = false;
    outdated(CHANGED);
    if (isSent && isOpen()) await working(opened);
  }

  async function opened() {
    if (state.isRead) return;
    if (await readLines()) await run();
  }

  /** What is typed -> sequences -> the grid. false if it cannot be read; the page says why. */
  async function readLines() {
    const mine = ++version;
    try {
      const asked = read();
      if (!asked) return drop("There is no text to look into.");
      if (asked.vectors) return drop("Token ids are looked into, and this model takes vectors.");
      const sequences = few(await sequencesOf(asked));
      if (mine !== version) return false;
      Object.assign(state, { asked, sequences, isRead: true });
      const left = asked.texts.length - sequences.length;
      byId("inside-note").textContent = left ? `The first ${sequences.length} of ${asked.texts.length} texts.` : "";
      layOut();
      return true;
    } catch (error) {
      if (mine === version) {
        drop("Not compared: the request failed.");
        refuse(error, "POST v1/tokenize");
      }
      return false;
    }
  }

  function drop(why) {
    Object.assign(state, { sequences: [], given: null });
    layOut();
    for (const id of ["activations", "norms", "cost"]) byId(`of-${id}`).replaceChildren();
    noVerdict(why);
    return false;
  }

  function layOut() {
    const spare = Math.min(64, Math.max(0, Number(byId("spare").value) || 0));
    const names = state.sequences.flatMap(({ ids, tokens = [] }) => ids.map((id, at) => [id, tokens[at]]));
    const pad = { id: 0, token: new Map(names).get(0), type: 0 };
    state.rows = laidOut(state.sequences, chosen("place"), spare, pad);
    grid.show(state.rows);
    const row = Math.min(byId("row").selectedIndex, state.rows.length - 1);
    byId("row").replaceChildren(
      ...state.rows.map((_, index) => element("option", { value: index }, `Row ${index + 1}`)),
    );
    byId("row").selectedIndex = Math.max(0, row);
    edited();
  }

  function edited() {
    const cells = state.rows.flat();
    const real = realCells(cells).length;
    byId("counts").textContent =
      `${count(state.rows.length, "row")}, ${count(real, "token")}, ${count(cells.length - real, "pad")}`;
    outdated(CHANGED);
  }

  /** What is shown is of an earlier request, and so is what is under way. */
  function outdated(why) {
    version += 1;
    comparisons += 1;
    noVerdict(why);
    byId("view-inside").classList.toggle("stale", Boolean(state.given));
  }

  async function run() {
    const mine = ++version;
    comparisons += 1;
    noVerdict("Running…");
    byId("inside-error").classList.remove("shown");
    const { entry } = state.asked;
    const rows = structuredClone(state.rows);
    try {
      const given = await post("v1/infer", body(), ["usage"]);
      if (mine !== version) return;
      state.given = { given, entry, rows };
      byId("view-inside").classList.remove("stale");
      show();
      await compareBits();
    } catch (error) {
      if (mine !== version) return;
      outdated("Not compared: the request failed.");
      refuse(error, "POST v1/infer");
    }
  }

  function body() {
    const { entry, precision } = state.asked;
    return {
      model: entry.id,
      ...fieldsOf(state.rows),
      outputs: outputsOf(entry),
      ...(precision && { precision }),
    };
  }

  function show() {
    const { given, entry, rows } = state.given;
    const row = Math.max(0, byId("row").selectedIndex);
    for (const [name, parts] of Object.entries(measured(entry, rows, Math.min(row, rows.length - 1), given)))
      byId(`of-${name}`).replaceChildren(...parts);
  }

  async function compareBits() {
    const mine = ++comparisons;
    const cells = realCells(state.rows[Math.max(0, byId("row").selectedIndex)] ?? []);
    if (!cells.length) return noVerdict("This row has no real token.");
    const sequence = { ids: cells.map(({ id }) => id), types: cells.map(({ type }) => type) };
    const { entry, precision = entry.default_precision } = state.asked;
    try {
      await compare(sequence, entry, precision, () => mine === comparisons);
    } catch (error) {
      if (mine !== comparisons) return;
      noVerdict("Not compared: the request failed.");
      refuse(error, "POST v1/infer");
    }
  }

  const on = (id, name, act) => byId(id).addEventListener(name, () => working(async () => act()));
  const again = async () => {
    byId("inside-error").classList.remove("shown");
    if (state.isRead ? state.rows.length : await readLines()) await (state.given ? compareBits() : run());
  };
  on("again", "click", again);
  on("send", "click", async () => (state.isRead || (await readLines())) && state.rows.length && run());
  on("places", "change", layOut);
  on("spare", "input", layOut);
  on("row", "change", async () => {
    if (state.given) show();
    await again();
  });
  return { opened, changed };
}

/** Tokens of what is typed. Texts come as tokens, so that pads and mask can stand between them. */
async function sequencesOf(asked) {
  if (asked.ids) return asked.ids.slice(0, MOST_ROWS).map((ids) => ({ ids, types: ids.map(() => 0) }));
  const texts = asked.texts.slice(0, MOST_ROWS);
  const sent = asked.task === "rerank" ? texts.map((text) => [asked.query, text]) : texts;
  const prompt = asked.prompt && { prompt_name: asked.prompt };
  const wanted = { model: asked.entry.id, texts: sent, truncate: true, ...prompt };
  const { data } = await post("v1/tokenize", wanted, ["input_ids", "tokens"]);
  return data.input_ids.map((ids, at) => ({
    ids,
    tokens: data.tokens[at],
    types: data.token_type_ids?.[at] ?? ids.map(() => 0),
  }));
}

/** The first of them, as many as a grid can show at once; at least one. */
function few(sequences) {
  let cells = 0;
  const most = sequences.findIndex(({ ids }, at) => (cells += ids.length) > MOST_CELLS && at > 0);
  return most < 0 ? sequences : sequences.slice(0, most);
}
