// Asks the server that this page came from. The API key stays in this tab.

export const ROOT = new URL("..", import.meta.url);
const KEY = "addnorm-api-key";

export const apiKey = () => sessionStorage.getItem(KEY) ?? "";
export function useKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** The server's refusal in its own words; status 0: there was no answer. */
export class Refused extends Error {
  constructor(message, status, code, requestId) {
    super(message);
    Object.assign(this, { status, code, requestId });
  }
}

/** An error of any kind as one that can be shown. path: whose answer was read. */
export function inWords(error, path) {
  if (error instanceof Refused) return error;
  return new Refused(`${unexpected(path)} ${error.message}.`, 0);
}

const unexpected = (path) => `The answer of ${path} is not what the page expects:`;

export async function request(path, options) {
  const key = apiKey();
  const headers = { ...options.headers, ...(key ? { authorization: `Bearer ${key}` } : {}) };
  let answer;
  try {
    answer = await fetch(new URL(path, ROOT), { ...options, headers });
  } catch {
    throw new Refused(`${ROOT.host} does not answer: the server or the network is gone.`, 0);
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

/** The protocols' envelopes: {error: {message, code}}, {error: message}, {message}. */
async function refusal(answer) {
  const body = await answer.json().catch(() => null);
  const error = body?.error ?? body ?? {};
  const message = typeof error === "string" ? error : error.message;
  const requestId = answer.headers.get("x-request-id");
  const said = message ?? (answer.statusText || `The server answered ${answer.status}.`);
  return new Refused(said, answer.status, error.code, requestId);
}

/** -> the answer's JSON, which must have the fields. */
export const get = async (path, fields = []) =>
  jsonOf(await request(path, {}), `GET ${path}`, fields);

/** A JSON body -> the answer's JSON, which must have the fields, its headers and its stages. */
export async function post(path, body, fields) {
  const answer = await request(path, posted(body));
  return { data: await jsonOf(answer, `POST ${path}`, fields), ...told(answer) };
}

/** Texts to a route of a task -> what it found in each. */
export async function resultsOf(path, { entry, precision, texts, cuts }, more = {}) {
  const cut = cuts.size && { truncate: true };
  const body = { model: entry.id, texts, ...more, ...(precision && { precision }), ...cut };
  return (await post(path, body, ["results"])).data.results;
}

async function jsonOf(answer, path, fields) {
  const data = await answer.json().catch(() => null);
  if (data === null || typeof data !== "object") throw odd(answer, path, "it is not JSON");
  const missing = fields.filter((name) => data[name] === undefined || data[name] === null);
  if (missing.length) throw odd(answer, path, `it has no ${missing.join(", no ")}`);
  return data;
}

export const odd = (answer, path, why) =>
  new Refused(`${unexpected(path)} ${why}.`, 0, null, answer.headers.get("x-request-id"));

export const posted = (body, headers = {}) => ({
  method: "POST",
  headers: { "content-type": "application/json", ...headers },
  body: JSON.stringify(body),
});

export const told = (answer) => ({
  fingerprint: answer.headers.get("x-addnorm-fingerprint"),
  requestId: answer.headers.get("x-request-id"),
  stages: stagesOf(answer.headers.get("server-timing") ?? ""),
});

/** "decode;dur=0.5, queue;dur=0.1" -> [["decode", 0.5], ["queue", 0.1]], in milliseconds. */
const stagesOf = (header) =>
  [...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]);
