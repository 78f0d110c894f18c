// The request of a task as programs that run as they are. They never hold the API key.

const TYPES = { true: "True", false: "False", null: "None" };
/** JSON of a text or a number is Python too; lone surrogates cannot come. */
const python = (value, indent = "") => {
  const inner = `${indent}    `;
  if (Array.isArray(value) && !value.some((one) => Number.isFinite(one)) && value.length)
    return `[\n${value.map((one) => `${inner}${python(one, inner)},\n`).join("")}${indent}]`;
  if (Array.isArray(value)) return `[${value.join(", ")}]`;
  if (typeof value !== "object" || value === null) return TYPES[value] ?? JSON.stringify(value);
  const fields = Object.entries(value).map(([name, one]) => `${inner}"${name}": ${python(one, inner)},\n`);
  return `{\n${fields.join("")}${indent}}`;
};
/** Arguments of a call, one a line. */
const call = (fields) =>
  Object.entries(fields).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("");
/** One word of a shell. */
const shell = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`;

const precise = ({ precision }) => (precision ? { precision } : {});
const cut = ({ cuts }) => (cuts.size ? { truncate: true } : {});
const named = (prompt) => (prompt ? { prompt_name: prompt } : {});
const lens = { outputs: ["attentions"], attentions: { layers: [0], heads: [0] }, precision: "fp32" };
const ofToken = (type, texts, { entry }) => [
  "/v1/infer",
  { model: entry.id, texts, input_type: type, outputs: ["token_vectors"], normalize: entry.normalize, truncate: true },
];
const ofTexts = (path, more) => (asked) => [
  [path, { model: asked.entry.id, texts: asked.texts, ...more?.(asked), ...precise(asked), ...cut(asked) }],
];
const vectors = (asked, input, prompt) => [
  "/v1/embeddings",
  { model: asked.entry.id, input, ...named(prompt), ...precise(asked), ...cut(asked) },
];

/** Task -> its requests [[path, body]], and the lines of Python that print its answer. */
const REQUESTS = {
  embed: {
    requests: (asked) => [
      vectors(asked, asked.ids ?? asked.texts, asked.prompt),
      ...(asked.query ? [vectors(asked, [asked.query], asked.queryPrompt)] : []),
    ],
    python: `print([len(entry["embedding"]) for entry in answer["data"]])`,
  },
  rerank: {
    requests: (asked) => [
      ["/v1/rerank", { model: asked.entry.id, query: asked.query, documents: asked.texts, ...precise(asked) }],
    ],
    python: `for result in answer["results"]:
    print(result["relevance_score"], body["documents"][result["index"]])`,
  },
  classify: {
    requests: ofTexts("/v1/classify"),
    python: `for text, labels in zip(body["texts"], answer["results"]):
    print(labels[0]["label"], labels[0]["score"], text)`,
  },
  tag: {
    requests: ofTexts("/v1/tag", () => ({ aggregation_strategy: "simple" })),
    python: `for entities in answer["results"]:
    print([(entity["entity_group"], entity["word"], entity["score"]) for entity in entities])`,
  },
  fill_mask: {
    requests: ofTexts("/v1/fill-mask", () => ({ top_k: 5 })),
    python: `for masks in answer["results"]:
    print([[(word["token_str"], word["score"]) for word in words] for words in masks])`,
  },
  sparse: {
    requests: ofTexts("/v1/infer", ({ entry }) => ({
      outputs: ["sparse"],
      sparse: { top_k: Math.min(12, entry.limits.vocab_size) },
    })),
    python: `for vector in answer["sparse"]:
    print(dict(zip(vector["indices"], vector["values"])))`,
  },
  complete: {
    requests: (asked) => [["/v1/completions", { model: asked.entry.id, ...scored(asked), ...precise(asked) }]],
    python: `for choice in answer["choices"]:
    print(list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["token_logprobs"])))`,
  },
  multi_vector: {
    requests: (asked) => [ofToken("query", [asked.query], asked), ofToken("document", asked.texts, asked)].map(
      ([path, body]) => [path, { ...body, ...precise(asked) }],
    ),
    python: `print([len(vectors) for vectors in answer["token_vectors"]])`,
  },
  attention: {
    requests: ({ entry, ids, texts, cuts }) => [
      ["/v1/infer", { model: entry.id, ...(ids ? { input_ids: ids.slice(0, 1) } : { texts: texts.slice(0, 1) }), ...lens, ...cut({ cuts }) }],
    ],
    python: `print(len(answer["attentions"][0][0][0]), "rows of shares")`,
  },
  tensors: {
    requests: ({ entry, ids, vectors, texts, ...asked }) => {
      const given = vectors ? { inputs: vectors } : ids ? { input_ids: ids } : { texts };
      return [["/v1/infer", { model: entry.id, ...given, ...precise(asked), ...cut(asked) }]];
    },
    python: `print({name: value for name, value in answer.items() if name != "usage"})`,
  },
};

const scored = ({ ids, texts }) => ({
  prompt: ids ?? texts,
  echo: true,
  logprobs: 1,
  max_tokens: 1,
  temperature: 0,
});

/** asked: the request of the page, with {url, hasKey} -> language -> {code, note}. */
export function programs(asked) {
  const task = REQUESTS[asked.task];
  const requests = task.requests(asked);
  const made = { curl: curl(requests, asked), httpx: httpx(requests, task, asked), JavaScript: javascript(requests, asked) };
  for (const [name, of] of Object.entries(CLIENTS[asked.task] ?? {}))
    if (!asked.ids || name === "OpenAI") made[name] = of(asked, requests);
  return made;
}

function curl(requests, { url, hasKey }) {
  const key = hasKey ? ` \\\n  -H "authorization: Bearer $ADDNORM_API_KEY"` : "";
  const one = ([path, body]) =>
    `curl -s ${shell(url + path)} -H 'content-type: application/json'${key} \\\n  -d ${shell(JSON.stringify(body))}`;
  return { code: requests.map(one).join("\n") };
}

function httpx(requests, { python: lines }, { url, hasKey }) {
  const key = hasKey ? `headers = {"authorization": f"Bearer {os.environ['ADDNORM_API_KEY']}"}\n` : "";
  const one = ([path, body]) => `body = ${python(body)}
answer = httpx.post(${python(url + path)}, json=body, timeout=60${hasKey ? ", headers=headers" : ""})
answer = answer.raise_for_status().json()
${lines}`;
  return { code: `${hasKey ? "import os\n\n" : ""}import httpx\n\n${key}${requests.map(one).join("\n")}` };
}

function javascript(requests, { url, hasKey }) {
  const key = hasKey ? `, authorization: \`Bearer \${process.env.ADDNORM_API_KEY}\`` : "";
  const one = ([path, body]) => `{
const body = ${JSON.stringify(body, null, 2)};
const sent = await fetch(${JSON.stringify(url + path)}, {
  method: "POST",
  headers: { "content-type": "application/json"${key} },
  body: JSON.stringify(body),
});
if (!sent.ok) throw new Error(await sent.text());
console.dir(await sent.json(), { depth: 4 });
}`;
  return { code: requests.map(one).join("\n"), note: "A module: node --input-type=module, or a .mjs file." };
}

// ---- clients of others ----

const imported = (hasKey) => (hasKey ? "import os\n\n" : "");
const keyOf = ({ hasKey }) => (hasKey ? `os.environ["ADDNORM_API_KEY"]` : `"none"`);

const openaiClient = (asked) => `${imported(asked.hasKey)}from openai import OpenAI

client = OpenAI(base_url=${python(`${asked.url}/v1`)}, api_key=${keyOf(asked)})
`;

/** The fields that OpenAI has no name for. */
const extra = (fields) => (Object.keys(fields).length ? { extra_body: fields } : {});

function openaiEmbeddings(asked, requests) {
  const one = ([, { model, input, ...more }]) => `answer = client.embeddings.create(
${call({ model, input, ...extra(more) })})
print([len(entry.embedding) for entry in answer.data], answer.usage.total_tokens)`;
  const note = asked.ids && asked.entry.inputs.includes("texts")
    ? "The route takes only ids that begin and end with the model's special tokens."
    : "";
  return { code: openaiClient(asked) + requests.map(one).join("\n"), note };
}

const openaiCompletions = (asked) => ({
  code: `${openaiClient(asked)}answer = client.completions.create(
${call({ model: asked.entry.id, ...scored(asked), ...extra(precise(asked)) })})
for choice in answer.choices:
    print(list(zip(choice.logprobs.tokens, choice.logprobs.token_logprobs)))`,
});

const cohereClient = (asked) => `${imported(asked.hasKey)}import cohere

client = cohere.ClientV2(${keyOf(asked)}, base_url=${python(asked.url)})
`;
const FP32_NOTE = "Cohere's client names no precision: the server takes the model's default.";
const cohereNote = (asked) => (asked.precision ? FP32_NOTE : "");

function cohereEmbed(asked) {
  const one = (texts, type) => `answer = client.embed(
${call({ model: asked.entry.id, texts, input_type: type, embedding_types: ["float"] })})
print([len(vector) for vector in answer.embeddings.float_])`;
  const query = asked.query ? `\n${one([asked.query], "search_query")}` : "";
  return { code: cohereClient(asked) + one(asked.texts, "search_document") + query, note: cohereNote(asked) };
}

const cohereRerank = (asked) => ({
  code: `${cohereClient(asked)}answer = client.rerank(
${call({ model: asked.entry.id, query: asked.query, documents: asked.texts })})
print([(result.index, result.relevance_score) for result in answer.results])`,
  note: cohereNote(asked),
});

/** text-embeddings-inference names no model in its bodies. */
const tei = (path, body) => (asked) => ({
  ...curl([[path, { ...body(asked) }]], asked),
  note: `text-embeddings-inference names no model. Where several are served, start the server with ADDNORM_DEFAULT_MODELS=${asked.task === "multi_vector" ? "embed" : asked.task}=${asked.entry.id}.`,
});

const CLIENTS = {
  embed: {
    OpenAI: openaiEmbeddings,
    Cohere: cohereEmbed,
    TEI: tei("/embed", (asked) => ({ inputs: asked.texts, ...named(asked.prompt), truncate: true })),
  },
  rerank: {
    Cohere: cohereRerank,
    TEI: tei("/rerank", ({ query, texts }) => ({ query, texts, truncate: true })),
  },
  classify: { TEI: tei("/predict", ({ texts }) => ({ inputs: texts.map((text) => [text]), truncate: true })) },
  sparse: { TEI: tei("/embed_sparse", ({ texts }) => ({ inputs: texts, truncate: true })) },
  complete: { OpenAI: openaiCompletions },
};
