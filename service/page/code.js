// The present request as programs that run as they are. They never hold the API key.

const lines = (rows) =>
  rows.length > 1
    ? `[\n        ${rows.map(python).join(",\n        ")},\n    ]`
    : `[${rows.map(python)}]`;
/** JSON of a text or a number is Python too; lone surrogates cannot come. */
const python = (value) => {
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map((pair) => pair.map(python).join(": ")).join(", ")}}`;
};
/** One word of a shell. */
const shell = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

/** request: {url, body, sequences, texts, embeds, takesTexts, hasKey}. texts: null where what is sent
 * is not what the server makes of the texts as they are. -> {code, note}. */
export const LANGUAGES = { curl, httpx, openai, tritonclient };

function curl({ url, body, hasKey }) {
  const key = hasKey ? ` \\\n  -H "authorization: Bearer $ADDNORM_API_KEY"` : "";
  return {
    code: `curl -s ${shell(`${url}/v1/infer`)} -H 'content-type: application/json'${key} \\
  -d ${shell(JSON.stringify(body))}`,
  };
}

function httpx({ url, body, hasKey }) {
  const key = hasKey
    ? `\n    headers={"authorization": f"Bearer {os.environ['ADDNORM_API_KEY']}"},`
    : "";
  const fields = Object.entries(body).map(
    ([name, value]) => `    ${python(name)}: ${isRows(value) ? lines(value) : python(value)},`,
  );
  return {
    code: `${hasKey ? "import os\n\n" : ""}import httpx

body = {
${fields.join("\n")}
}
answer = httpx.post(
    ${python(`${url}/v1/infer`)},
    json=body,${key}
)
answer.raise_for_status()
print({name: type(value).__name__ for name, value in answer.json().items()}, answer.json()["usage"])
print(answer.headers["server-timing"], answer.headers["x-addnorm-fingerprint"])`,
  };
}

const isRows = (value) => Array.isArray(value) && Array.isArray(value[0]);

function openai({ url, body, sequences, texts, embeds, takesTexts, hasKey }) {
  const key = hasKey ? `os.environ["ADDNORM_API_KEY"]` : `"none"`;
  if (!sequences.length)
    return { code: "", note: "There is nothing to send: every token is masked." };
  const input = texts
    ? `[${texts.map((text) => `\n        ${python(text)},`).join("")}\n    ]`
    : lines(sequences);
  const extra = body.precision ? `\n    extra_body={"precision": ${python(body.precision)}},` : "";
  const vectors = embeds
    ? "The vectors of the same sequences, pooled as the model's authors do. The route takes no mask: it needs no pads."
    : "This model was not made for embeddings. These are its pooled activations.";
  const ends = " The route takes only ids that begin and end with the model's special tokens.";
  return {
    note: vectors + (takesTexts && !texts ? ends : ""),
    code: `${hasKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${python(`${url}/v1`)}, api_key=${key})
answer = client.embeddings.create(
    model=${python(body.model)},
    input=${input},${extra}
)
print([len(entry.embedding) for entry in answer.data], answer.usage.total_tokens)`,
  };
}

/** Triton's tensors are rectangles: ragged rows are padded on the right. */
function tritonclient({ url, body, hasKey }) {
  const width = Math.max(...body.input_ids.map((row) => row.length));
  const padded = (rows) => rows.map((row) => [...row, ...Array(width - row.length).fill(0)]);
  const mask = body.attention_mask ?? body.input_ids.map((row) => row.map(() => 1));
  const tensors = { input_ids: padded(body.input_ids), attention_mask: padded(mask) };
  if (body.token_type_ids) tensors.token_type_ids = padded(body.token_type_ids);
  const shape = `[${body.input_ids.length}, ${width}]`;
  const secure = url.startsWith("https") ? ", ssl=True" : "";
  const set = Object.entries(tensors).map(
    ([name, rows]) => `${name} = InferInput("${name}", ${shape}, "INT64")
${name}.set_data_from_numpy(np.array(${lines(rows).replaceAll("\n    ", "\n")}))`,
  );
  const outputs = body.outputs.filter((name) => name !== "norm_stats" && name !== "logits");
  const parameters = body.precision
    ? `\n    parameters={"precision": ${python(body.precision)}},`
    : "";
  const headers = hasKey
    ? `\n    headers={"authorization": f"Bearer {os.environ['ADDNORM_API_KEY']}"},`
    : "";
  return {
    code: `${hasKey ? "import os\n\n" : ""}import numpy as np
from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

client = InferenceServerClient(${python(url.replace(/^https?:\/\//, ""))}${secure})
${set.join("\n")}
answer = client.infer(
    ${python(body.model)},
    [${Object.keys(tensors).join(", ")}],
    outputs=[${outputs.map((name) => `InferRequestedOutput("${name}")`).join(", ")}],${parameters}${headers}
)
print({name: answer.as_numpy(name).shape for name in ${python(outputs)}})`,
  };
}
