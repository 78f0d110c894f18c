// A model's certificate: the verdict, what it is of, every check with its margin to the limit, and
// what holds on a GPU where that was measured.

import { byId, card, count, element, folded, short } from "../dom.js";
import { onGpu, placed } from "./gpu.js";
import { bar, fact, scrolling } from "../panel.js";
import { Refused, apiKey, get, inWords, useKey } from "../server.js";

// the page's own address says which model: /models/NAME/certificate, /models/NAME/VERSION/certificate
const MODEL = location.pathname.match(/\/models\/(.+)\/certificate\/?$/)?.[1] ?? "";
const EXACT = "exact comparisons";
// what has a place of its own; other fields are shown as they are
const PLACED = [
  ...["bundle", "passed", "checks", "cuda", "fingerprint_parts", "known_answer", "nodes"],
  "known_digests",
];
const NAMED = 5; // known answers with other bits

async function start() {
  byId("error").replaceChildren();
  byId("error").classList.remove("shown");
  const path = `v1/models/${MODEL}/certificate`;
  try {
    if (/%2f/i.test(MODEL))
      throw new Refused(`No model is named ${decodeURIComponent(MODEL)}: names have no slash.`, 0);
    const [certificate, model] = await Promise.all([
      get(path, ["bundle", "checks"]),
      get(`v1/models/${MODEL}`),
    ]);
    show(certificate, model);
  } catch (error) {
    refuse(inWords(error, `GET ${path}`));
  }
}

function show(certificate, model) {
  const { bundle, passed, checks } = certificate;
  document.title = `Certificate of ${bundle}`;
  byId("title").textContent = `Certificate of ${bundle}`;
  const failed = checks.filter((check) => !(check.difference <= check.limit)).length;
  const closest = checks
    .filter((check) => check.limit)
    .reduce((most, check) => Math.max(most, check.difference / check.limit), 0);
  const within = `${count(checks.length, "check")}, each within its limit`;
  const said = failed
    ? `Not passed. ${count(failed, "check")} over the limit.`
    : passed
      ? `Passed. ${within}; the closest reached ${short(100 * closest)} % of it.`
      : "Not passed, though no check is over its limit.";
  byId("certificate").replaceChildren(
    element("p", { class: `verdict ${passed && !failed ? "equal" : "different"}` }, said),
    ...Object.entries(model.reproduces_certificate).map(([precision, isEqual]) =>
      bitsHere(precision, isEqual, model.different_from_certificate[precision]),
    ),
    about(certificate, model),
    ...precisions(checks).map((name) => checksOf(name, ofPrecision(checks, name))),
    ...(certificate.cuda ? ofGpu(certificate.cuda) : []),
  );
}

/** Whether this server computes the bits that the certificate records. */
function bitsHere(precision, isEqual, different) {
  const some = different.slice(0, NAMED).join(", ");
  const more = different.length > NAMED ? ` and ${different.length - NAMED} more` : "";
  const said = isEqual
    ? "this server computes the bits that the certificate records."
    : isEqual === null
      ? "this server's bits are not compared with the certificate's."
      : `this server computes other bits than the certificate records: ${some}${more}.`;
  const found = isEqual === false ? " found" : "";
  return element("p", { class: `bits-here${found}` }, `${precision}: ${said}`);
}

function ofGpu(section) {
  const { gpu, checks } = section;
  const tables = precisions(checks).map((name) =>
    checksOf(`${name} on ${gpu}`, ofPrecision(checks, name)),
  );
  return [onGpu(section), ...tables];
}

const precisions = (checks) => [...new Set(checks.map((check) => check.precision))];
const ofPrecision = (checks, name) => checks.filter((check) => check.precision === name);

function about(certificate, model) {
  const rest = Object.entries(certificate).filter(([name]) => !PLACED.includes(name));
  const parts = Object.entries(certificate.fingerprint_parts ?? {});
  const facts = [
    ...rest.map(([name, value]) => fact(words(name), shown(value))),
    fact("layout", model.layout),
    fact("source", shown(model.source)),
    fact("sha256 of files", shown(model.files)),
    certificate.nodes && fact("nodes of the graphs", placed(certificate.nodes)),
    ...parts.map(([precision, of]) =>
      fact(`fingerprint of ${precision}`, folded("What it is a digest of", shown(of))),
    ),
    fact(
      "known answer",
      certificate.known_answer ? shown(knownAnswer(certificate.known_answer)) : "none",
    ),
  ];
  return card("What was certified", element("dl", { class: "facts" }, ...facts));
}

/** The numbers themselves are long. */
const knownAnswer = (byPrecision) =>
  Object.fromEntries(
    Object.entries(byPrecision).map(([name, { input_ids: ids }]) => [
      name,
      `of the ids ${ids?.join(" ")}; /readyz asks for it again and again`,
    ]),
  );

const words = (name) => name.replaceAll("_", " ");

/** Any value: what is known today and what may come. */
function shown(value) {
  if (Array.isArray(value) && value.every((one) => typeof one !== "object"))
    return value.join(", ");
  if (value === null || typeof value !== "object")
    return element("span", { class: isDigest(value) ? "digits" : "" }, String(value));
  return element(
    "ul",
    {},
    ...Object.entries(value).map(([name, inner]) =>
      element("li", {}, element("span", { class: "help" }, `${words(name)} `), shown(inner)),
    ),
  );
}

const isDigest = (value) => typeof value === "string" && /^[0-9a-f]{32,}$/.test(value);

/** Case -> its checks. What must be equal and is compared as a whole stands together, first. */
function grouped(checks) {
  const groups = new Map([[EXACT, []]]);
  for (const check of checks) {
    const isWhole =
      !check.limit && checks.filter((other) => other.case === check.case).length === 1;
    const name = isWhole ? EXACT : check.case;
    groups.set(name, [
      ...(groups.get(name) ?? []),
      isWhole ? { ...check, output: check.case } : check,
    ]);
  }
  return [...groups].filter(([, found]) => found.length);
}

function checksOf(precision, checks) {
  const exact = checks.filter((check) => !check.limit).length;
  const said = `${count(checks.length, "check")}, ${exact} of them exact. A bar is the difference as a share of its limit.`;
  return card(
    precision,
    element("p", { class: "help" }, said),
    element("p", { class: "help sideways" }, "The table scrolls sideways."),
    scrolling(`Checks of ${precision}`, tableOf(grouped(checks))),
  );
}

function tableOf(groups) {
  const head = ["output", "difference", "limit", "share of the limit"].map((name) =>
    element("th", { scope: "col" }, name),
  );
  const bodies = groups.map(([name, checks]) => {
    const title = element(
      "tr",
      {},
      element("th", { scope: "rowgroup", colspan: head.length, class: "case" }, name),
    );
    return element("tbody", {}, title, ...checks.map(rowOf));
  });
  return element(
    "table",
    { class: "numbers margins" },
    element("thead", {}, element("tr", {}, ...head)),
    ...bodies,
  );
}

function rowOf(check) {
  const { output, difference, limit } = check;
  const others = Object.entries(check).filter(
    ([name]) => !["case", "output", "precision", "difference", "limit"].includes(name),
  );
  const named = [output, ...others.map(([name, value]) => `${words(name)} ${value}`)].join(", ");
  const isWithin = difference <= limit;
  const share = limit ? difference / limit : Number(!isWithin);
  const told = limit
    ? `${(100 * share).toFixed(share < 0.1 ? 2 : 0)} %`
    : isWithin
      ? "equal"
      : "not equal";
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, named),
    element("td", {}, short(difference)),
    element("td", {}, short(limit)),
    element(
      "td",
      { class: "margin" },
      limit ? bar(share, isWithin ? "" : "over") : "",
      element("b", { class: isWithin ? (limit ? "" : "same") : "found" }, told),
    ),
  );
}

function refuse(error) {
  const about = [
    error.status && `${error.status} ${error.code ?? ""}`.trim(),
    error.requestId && `request ${error.requestId}`,
  ]
    .filter(Boolean)
    .join(", ");
  byId("error").classList.add("shown");
  byId("error").replaceChildren(
    element("strong", {}, error.message),
    element("span", { class: "help" }, about),
  );
  byId("certificate").replaceChildren();
  if (error.status === 401) byId("key").focus();
}

/** Says on the page that it is under way. */
async function load() {
  document.body.dataset.jobs = 1;
  await start();
  document.body.dataset.jobs = 0;
}

byId("key").value = apiKey();
byId("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  useKey(byId("key").value.trim());
  load();
});
load();
