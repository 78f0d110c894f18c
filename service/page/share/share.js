// What leaves the page: programs, a link with its state, a picture of the answer.

import { byId, choose, chosen, element } from "../dom.js";
import { ROOT, apiKey } from "../server.js";
import { programs } from "./code.js";
import { saved } from "./picture.js";

let made = {}; // language -> {code, note}

/** asked: the request as it stands; null where there is none to send. */
export function showCode(asked) {
  const url = ROOT.href.replace(/\/$/, "");
  const before = Object.keys(made).join();
  const language = chosen("language");
  made = asked ? programs({ ...asked, url, hasKey: Boolean(apiKey()) }) : {};
  const names = Object.keys(made);
  if (names.join() !== before) {
    const one = (value) =>
      element("label", {}, element("input", { type: "radio", name: "language", value }), element("span", {}, value));
    byId("languages").replaceChildren(element("legend", { class: "hidden" }, "Client"), ...names.map(one));
    choose("language", names.includes(language) ? language : names[0]);
  }
  showProgram();
}

export function showProgram() {
  const { code, note = "" } = made[chosen("language")] ?? { code: "", note: "There is nothing to send." };
  byId("code").textContent = code;
  byId("code-note").textContent = note;
}

export const copy = () => toClipboard(byId("code").textContent, byId("copy"), byId("code"));

async function toClipboard(text, button, shown) {
  const words = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    // without a secure context only the reader can copy
    if (shown) getSelection().selectAllChildren(shown);
    button.textContent = shown ? "Selected" : "It is in the address bar";
  }
  byId("status").textContent = button.textContent;
  setTimeout(() => (button.textContent = words), 1500);
}

const FIELDS = ["model", "task", "precision", "prompt", "query-prompt", "query", "lines"];

/** Puts the state into the address, after the #, which browsers send to no server. */
export async function link(tab) {
  const said = new URLSearchParams(FIELDS.map((id) => [id, byId(id).value]).filter(([id, value]) => value || id.endsWith("prompt")));
  said.set("kind", chosen("kind"));
  if (tab !== "tab-answer") said.set("tab", tab);
  history.replaceState(null, "", `#${said}`);
  await toClipboard(location.href, byId("link"));
}

export const save = (kind) => saved(byId("answer"), kind, `${byId("model").value}-${byId("task").value}`);
