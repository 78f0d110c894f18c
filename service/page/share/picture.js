// The answer as a picture: each box and each line of words that is seen, as SVG, and that as PNG.

import { shape } from "../tasks/plane.js";

const SCALE = 2; // pixels of a PNG for each of the page
const MARGIN = 16;

export async function saved(shown, kind, name) {
  const svg = drawn(shown);
  const text = new Blob([new XMLSerializer().serializeToString(svg)], { type: "image/svg+xml" });
  download(kind === "svg" ? text : await png(text, svg), `${name}.${kind}`);
}

function download(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replaceAll(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function png(text, svg) {
  const image = new Image();
  const url = URL.createObjectURL(text);
  image.src = url;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = ["width", "height"].map((side) => SCALE * Number(svg.getAttribute(side)));
  canvas.getContext("2d").drawImage(image, 0, 0, canvas.width, canvas.height);
  URL.revokeObjectURL(url);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
}

export function drawn(shown) {
  const frame = shown.getBoundingClientRect();
  const origin = [frame.left - MARGIN, frame.top - MARGIN];
  const [width, height] = [Math.ceil(frame.width) + 2 * MARGIN, Math.ceil(frame.height) + 2 * MARGIN];
  const svg = shape("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
  const ground = getComputedStyle(shown.closest(".card")).backgroundColor;
  svg.append(shape("rect", { width, height, fill: ground }));
  draw(shown, origin, svg);
  return svg;
}

/** right: where the boxes around it cut it off. */
function draw(node, origin, into, right = Infinity) {
  if (node.nodeType === Node.TEXT_NODE) return words(node, origin, into, right);
  const style = node.nodeType === Node.ELEMENT_NODE && getComputedStyle(node);
  if (!style || style.display === "none" || node.matches("select, label, .hidden")) return;
  if (node.tagName === "svg") return into.append(copied(node, origin));
  if (node.tagName === "CANVAS") return into.append(shape("image", { ...boxOf(node, origin), href: node.toDataURL(), preserveAspectRatio: "none" }));
  box(node, style, origin, into);
  const isCut = style.overflowX !== "visible" && node.clientWidth;
  const end = isCut ? Math.min(right, node.getBoundingClientRect().right) : right;
  for (const child of node.childNodes) draw(child, origin, into, end);
}

const boxOf = (node, [left, top]) => {
  const { x, y, width, height } = node.getBoundingClientRect();
  return { x: x - left, y: y - top, width, height };
};

function box(node, style, origin, into) {
  if (/^rgba\(.*, 0\)$|transparent/.test(style.backgroundColor)) return;
  into.append(shape("rect", { ...boxOf(node, origin), rx: parseFloat(style.borderRadius) || 0, fill: style.backgroundColor }));
}

/** A text for each line that the words stand in. */
function words(node, [left, top], into, right) {
  const style = getComputedStyle(node.parentElement);
  const range = document.createRange();
  let line = null;
  for (const { 0: word, index } of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, index);
    range.setEnd(node, index + word.trimEnd().length);
    const [first] = range.getClientRects();
    if (!first || first.right > right + 1) continue;
    if (line && Math.abs(line.at - first.top) < 3) line.made.textContent += word;
    else line = { at: first.top, made: written(word, first, style) };
    if (!line.made.isConnected && line.made.parentNode !== into) into.append(line.made);
  }

  function written(word, { x, bottom, height }, { color, fontSize, fontWeight, fontFamily, textDecorationLine }) {
    return shape("text", {
      x: x - left, y: bottom - top - 0.24 * height, fill: color, "font-size": fontSize, "font-weight": fontWeight,
      "font-family": fontFamily, "text-decoration": textDecorationLine, "xml:space": "preserve",
    }, word);
  }
}

const LOOKS = ["fill", "stroke", "stroke-width", "stroke-opacity", "font-size", "font-family", "font-weight", "opacity"];

/** A drawing of the page, with the looks that its styles give it. */
function copied(svg, origin) {
  const copy = svg.cloneNode(true);
  const [from, to] = [svg, copy].map((one) => [...one.querySelectorAll("*")]);
  from.forEach((one, at) => {
    const style = getComputedStyle(one);
    for (const name of LOOKS) to[at].setAttribute(name, style.getPropertyValue(name));
  });
  const place = boxOf(svg, origin);
  for (const [name, value] of Object.entries(place)) copy.setAttribute(name, value);
  return copy;
}
