// What else packages are asked for: lists, types of vectors, many values, and errors in words.

import { embed } from "ai";
import * as calls from "./calls.js";
import * as clients from "./clients.js";
import { mustEqual, mustHaveBits, posted, ranking, vectors } from "./plain.js";

const { MODEL, QUERY, RANKER, TEXTS, created } = calls;
const MANY = Array.from({ length: 3000 }, (_, index) => "a b c ".repeat(1 + (index % 9)));
const SCORED = { model: "gpt", prompt: QUERY, echo: true, logprobs: 1, max_tokens: 0 };
const TYPES = ["int8", "uint8", "binary", "ubinary"];
const WRONG_KEY = "no-key-of-this-server";

// Error unless the call throws one of this name, which the server's words reach.
async function mustThrow(name, words, call) {
  const thrown = await call().catch((error) => error);
  const said = `${thrown?.message} ${JSON.stringify(thrown?.body)}`;
  mustEqual([thrown?.constructor.name, said.includes(words)], [name, true], said);
}

const unknown = (name, call) => mustThrow(name, "model 'nothing' is not served here", call);
const nothing = { model: "nothing", input: TEXTS };

export const OTHERS = {
  "openai models": async (at) => {
    const client = clients.openai(at);
    const names = (await client.models.list()).data.map((entry) => entry.id);
    mustEqual([names.includes(MODEL), (await client.models.retrieve(MODEL)).id], [true, MODEL]);
  },
  "openai embeddings, dimensions": async (at) => {
    const dimensions = 3;
    const expected = await vectors(at, MODEL, TEXTS, { dimensions });
    mustHaveBits(await created(clients.openai(at), { dimensions }), expected);
  },
  "openai completions": async (at) => {
    const { choices } = await clients.openai(at).completions.create(SCORED);
    mustEqual(choices, (await posted(at, "/v1/completions", SCORED)).choices);
  },
  "openai errors": async (at) => {
    const client = clients.openai(at);
    await unknown("NotFoundError", () => created(client, nothing));
    await mustThrow("BadRequestError", "more than embedder/1 takes", () =>
      created(client, { input: "a ".repeat(60) }),
    );
    const other = clients.openai({ ...at, key: WRONG_KEY });
    await mustThrow("AuthenticationError", "API key", () => created(other));
  },
  "cohere-ai embed, types": async (at) => {
    const client = clients.cohereV2(at);
    const got = await calls.embeddedByCohere(client, { embeddingTypes: TYPES });
    for (const dtype of TYPES)
      mustEqual(got[dtype], await vectors(at, MODEL, TEXTS, { dtype }), dtype);
  },
  "cohere-ai errors": async (at) => {
    const client = clients.cohereV2(at);
    const asked = { model: "nothing" };
    await unknown("NotFoundError", () => calls.embeddedByCohere(client, asked));
    const other = clients.cohereV2({ ...at, key: WRONG_KEY });
    await mustThrow("UnauthorizedError", "API key", () => calls.embeddedByCohere(other));
  },
  "@huggingface/inference errors": async (at) => {
    const client = clients.huggingFace(at, "/hf/nothing");
    const call = () => client.featureExtraction({ inputs: QUERY });
    await unknown("InferenceClientProviderApiError", call);
  },
  "ai embedMany, 3,000 values": async (at) => {
    const got = await calls.embeddedByAi(clients.aiCompatible(at), MANY);
    const halves = [MANY.slice(0, 1500), MANY.slice(1500)];
    const plain = await Promise.all(halves.map((texts) => vectors(at, MODEL, texts)));
    mustHaveBits(got, plain.flat());
  },
  "ai embedMany, dimensions": async (at) => {
    const options = { openai: { dimensions: 3 } };
    const got = await calls.embeddedByAi(clients.aiOpenai(at), TEXTS, options);
    mustHaveBits(got, await vectors(at, MODEL, TEXTS, { dimensions: 3 }));
  },
  "ai rerank, objects": async (at) => {
    const objects = TEXTS.map((text) => ({ text, title: "a b" }));
    const plain = await ranking(at, RANKER, QUERY, objects.map((each) => JSON.stringify(each)));
    mustEqual(await calls.rankedByAi(at, objects), plain);
  },
  "ai errors": async (at) => {
    for (const provider of [clients.aiCompatible(at), clients.aiCohere(at)])
      await unknown("APICallError", () =>
        embed({ model: provider.embeddingModel("nothing"), value: QUERY }),
      );
  },
  "ollama list, show, version": async (at) => {
    const client = clients.ollama(at);
    const names = (await client.list()).models.map((entry) => entry.model);
    const { capabilities } = await client.show({ model: MODEL });
    mustEqual([names.includes(`${MODEL}:latest`), capabilities], [true, ["embedding"]]);
    mustEqual(typeof (await client.version()).version, "string");
  },
  "ollama errors": async (at) => {
    const client = clients.ollama(at);
    // it adds fields to what it is given
    await unknown("ResponseError", () => client.embed({ ...nothing }));
    await mustThrow("ResponseError", "there is no such path", () => client.generate({ ...nothing }));
  },
  "voyageai embed, outputDtype": async (at) => {
    const got = await calls.embeddedByVoyage(at, { outputDtype: "int8" });
    mustEqual(got, await vectors(at, MODEL, TEXTS, { dtype: "int8" }));
  },
  "voyageai errors": async (at) => {
    const client = clients.voyage(at);
    await unknown("VoyageAIError", () => client.embed(nothing));
  },
};
