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

async function request(path, options) {
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
  const body = await answer.json().catch(() => ({}));
  const error = body.error ?? body;
  const message = typeof error === "string" ? error : error.message;
  const requestId = answer.headers.get("x-request-id");
  return new Refused(message ?? answer.statusText, answer.status, error.code, requestId);
}

export const get = async (path) => (await request(path, {})).json();

/** A JSON body -> the answer's JSON, its headers and its stages. */
export async function post(path, body) {
  const answer = await request(path, posted(body));
  return { data: await answer.json(), ...told(answer) };
}

/** A JSON body -> the answer's tensors as bytes, computed anew. */
export async function postForTensors(path, body) {
  const headers = { accept: "application/vnd.safetensors", "cache-control": "no-cache" };
  const answer = await request(path, posted(body, headers));
  return { tensors: tensorsOf(await answer.arrayBuffer()), ...told(answer) };
}

const posted = (body, headers = {}) => ({
  method: "POST",
  headers: { "content-type": "application/json", ...headers },
  body: JSON.stringify(body),
});

const told = (answer) => ({
  fingerprint: answer.headers.get("x-addnorm-fingerprint"),
  requestId: answer.headers.get("x-request-id"),
  stages: stagesOf(answer.headers.get("server-timing") ?? ""),
});

/** "decode;dur=0.5, queue;dur=0.1" -> [["decode", 0.5], ["queue", 0.1]], in milliseconds. */
const stagesOf = (header) =>
  [...header.matchAll(/([\w-]+);dur=([\d.]+)/g)].map(([, name, ms]) => [name, Number(ms)]);

/** Name -> {shape, words}: float32 as their 32 bits. Other types are left out. */
function tensorsOf(buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const found = {};
  for (const [name, { dtype, shape, data_offsets: [from, to] = [] }] of Object.entries(header)) {
    if (dtype !== "F32") continue;
    found[name] = { shape, words: new Uint32Array(buffer.slice(8 + length + from, 8 + length + to)) };
  }
  return found;
}
