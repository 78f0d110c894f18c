// What another precision changes in exactly this answer.

import { element, short } from "./dom.js";
import { headline, panel, scrolling, thead } from "./panel.js";

const MOST = 12; // numbers that are listed

/** view: of the task; data: its answer in the precision that was asked for. */
export async function changes(view, asked, data, other) {
  const second = await view.ask({ ...asked, precision: other });
  const [here, there] = [view.facts(data, asked), view.facts(second, asked)];
  return [
    headline(decided(here, there, other)),
    panel(`What ${other} changes`, "largest change first", table(asked.precision, other, here, there)),
  ];
}

/** said: [about, what was decided]. */
function decided(here, there, other) {
  const decisions = new Map(there.said);
  const lost = here.said.filter(([about, what]) => decisions.get(about) !== what);
  const known = new Set(here.said.map(([about]) => about));
  const more = there.said.filter(([about]) => !known.has(about)).length;
  if (!lost.length && !more) return `${other} decides the same${here.said.length ? ` in ${here.said.length} of ${here.said.length}` : ""}.`;
  const [about, what] = lost[0] ?? [];
  const first = about ? ` First: ${about}, ${what} → ${decisions.get(about) ?? "nothing"}.` : "";
  const added = more ? ` ${more} more than here.` : "";
  return `${other} decides otherwise in ${lost.length} of ${here.said.length}.${first}${added}`;
}

function table(precision, other, here, there) {
  const numbers = new Map(there.numbers);
  const rows = here.numbers
    .map(([name, value]) => [name, value, numbers.get(name), Math.abs(value - numbers.get(name))])
    .sort((one, another) => (another[3] || 0) - (one[3] || 0));
  const cells = (texts) => texts.map((text) => element("td", {}, text));
  const body = rows
    .slice(0, MOST)
    .map(([name, value, found, change]) =>
      element(
        "tr",
        {},
        element("th", { scope: "row" }, name),
        ...cells([value, found, change].map((one) => (Number.isFinite(one) ? short(one) : "none"))),
      ),
    );
  const head = thead(["number", precision, other, "change"]);
  const made = element("table", { class: "numbers changes" }, head, element("tbody", {}, ...body));
  return scrolling("Changes", made);
}
