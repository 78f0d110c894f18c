// The server's plain routes, and whether something else gave the same.

import { bearing } from "./clients.js";

export async function posted({ url, key }, path, body) {
  const headers = { ...bearing(key), "content-type": "application/json" };
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(await answer.text());
  return answer.json();
}

export async function vectors(at, model, input, options) {
  const answer = await posted(at, "/v1/embeddings", { model, input, ...options });
  return answer.data.map((entry) => entry.embedding);
}

export async function scaled(at, model, texts) {
  const body = { model, texts, outputs: ["pooled"], normalize: true };
  return (await posted(at, "/v1/infer", body)).pooled;
}

export async function ranking(at, model, query, documents) {
  const { results } = await posted(at, "/v1/rerank", { model, query, documents, top_n: 2 });
  return results.map(({ index, relevance_score }) => [index, relevance_score]);
}

// Error where one number or word differs. The plain routes write no float32 in two ways.
export function mustEqual(got, expected, what) {
  const [one, other] = [got, expected].map((value) => JSON.stringify(value));
  if (one !== other) throw new Error(`${what}: got ${one}, the plain route gives ${other}`);
}

export function mustHaveBits(got, expected) {
  const bits = (rows) => rows.map((row) => [...new Uint32Array(new Float32Array(row).buffer)]);
  mustEqual(bits(got), bits(expected), "bits");
}
