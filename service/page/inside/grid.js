// The grid of tokens that is sent, and its mask. A row is a list of cells {id, token, type, real}.

import { byId, element } from "../dom.js";

/** Where the tokens of a sequence stand in a row of `width` cells. */
export function columns(length, width, place) {
  if (place === "left") return Array.from({ length }, (_, index) => width - length + index);
  if (place === "holes")
    return Array.from({ length }, (_, index) => Math.floor(((index + 0.5) * width) / length));
  return Array.from({ length }, (_, index) => index);
}

/** Sequences {ids, tokens, types} -> rows of one width; of their own length for place `none`. */
export function laidOut(sequences, place, spare, pad) {
  const longest = Math.max(0, ...sequences.map(({ ids }) => ids.length));
  return sequences.map(({ ids, tokens, types }) => {
    const width = place === "none" ? ids.length : longest + spare;
    const row = Array.from({ length: width }, () => ({ ...pad, real: false }));
    columns(ids.length, width, place).forEach((column, index) => {
      row[column] = {
        id: ids[index],
        token: tokens?.[index],
        type: types?.[index] ?? 0,
        real: true,
      };
    });
    return row;
  });
}

export const realCells = (row) => row.filter((cell) => cell.real);

/** The fields of a request: ragged where there is neither pad nor need of one. */
export function fieldsOf(rows) {
  const cells = rows.flat();
  const fields = { input_ids: rows.map((row) => row.map((cell) => cell.id)) };
  if (cells.some((cell) => !cell.real))
    fields.attention_mask = rows.map((row) => row.map((cell) => Number(cell.real)));
  if (cells.some((cell) => cell.type))
    fields.token_type_ids = rows.map((row) => row.map((cell) => cell.type));
  return fields;
}

/** The table in which the mask is edited. `changed` is called after each change. */
export class Grid {
  constructor(table, changed) {
    this.table = table;
    this.changed = changed;
    this.rows = [];
    this.at = [0, 0]; // the cell that the tab key reaches
    this.pressed = null; // the button that a mouse went down on
    this.painting = null; // what a drag makes of the cells that it crosses
    table.addEventListener("keydown", (event) => this.#key(event));
    table.addEventListener("pointerdown", (event) => this.#press(event));
    table.addEventListener("pointerover", (event) => this.#drag(event));
    table.addEventListener("click", (event) => this.#click(event));
    table.addEventListener("focusin", (event) => this.#rove(event.target.closest("button")));
    addEventListener("pointerup", () => (this.painting = null));
  }

  show(rows) {
    this.rows = rows;
    this.at = [0, 0];
    this.table.replaceChildren(
      element("tbody", {}, ...rows.map((row, index) => this.#row(row, index))),
    );
  }

  #row(row, index) {
    const cells = row.map((cell, column) => element("td", {}, this.#button(cell, index, column)));
    return element("tr", {}, element("th", { scope: "row" }, String(index + 1)), ...cells);
  }

  #button(cell, row, column) {
    const tabindex = row === this.at[0] && column === this.at[1] ? 0 : -1;
    const made = element(
      "button",
      { type: "button", tabindex, "data-row": row, "data-column": column },
      ...(cell.token === undefined ? [] : [element("span", { class: "token" }, cell.token), " "]),
      element("span", { class: "id" }, String(cell.id)),
      element("span", { class: "hidden" }),
    );
    return mark(made, cell);
  }

  #place(button) {
    return [Number(button.dataset.row), Number(button.dataset.column)];
  }

  #set(button, real) {
    const [row, column] = this.#place(button);
    const cell = this.rows[row][column];
    if (cell.real === real) return;
    cell.real = real;
    mark(button, cell);
    byId("status").textContent = `${named(cell)}, row ${row + 1}: ${real ? "real" : "pad"}`;
    this.changed();
  }

  #press(event) {
    const button = event.target.closest("button");
    this.pressed = null;
    if (!button || event.pointerType === "touch" || event.button) return; // touch scrolls
    this.pressed = button;
    const [row, column] = this.#place(button);
    this.painting = !this.rows[row][column].real;
    button.releasePointerCapture?.(event.pointerId);
    this.#set(button, this.painting);
  }

  #drag(event) {
    const button = event.target.closest("button");
    if (button && this.painting !== null) this.#set(button, this.painting);
  }

  /** Of keys, touches and screen readers; a mouse has painted by then. */
  #click(event) {
    const button = event.target.closest("button");
    const painted = button === this.pressed && event.detail;
    this.pressed = null;
    if (!button || painted) return;
    this.#set(button, button.getAttribute("aria-pressed") !== "true");
  }

  #key(event) {
    const [down, right] =
      { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key] ??
      [];
    const button = event.target.closest("button");
    if (down === undefined || !button) return;
    event.preventDefault();
    const [row, column] = this.#place(button);
    const next = this.#find(row + down, column + right);
    if (!next) return;
    if (event.shiftKey) this.#set(next, button.getAttribute("aria-pressed") === "true");
    next.focus();
  }

  #find(row, column) {
    return this.table.querySelector(`[data-row="${row}"][data-column="${column}"]`);
  }

  #rove(button) {
    if (!button) return;
    this.#find(...this.at)?.setAttribute("tabindex", -1);
    button.setAttribute("tabindex", 0);
    this.at = this.#place(button);
  }
}

const named = (cell) => (cell.token ? `${cell.token}, id ${cell.id}` : `id ${cell.id}`);

function mark(button, cell) {
  button.setAttribute("aria-pressed", cell.real);
  button.lastChild.textContent = cell.real ? " real" : " pad";
  return button;
}
