// What each package is asked for: vectors of TEXTS, or the best two of them.

import { embedMany, rerank } from "ai";
import * as clients from "./clients.js";

export const { MODEL, RANKER } = clients;
export const QUERY = "the same text";
export const TEXTS = ["pads are dropped", "padding costs nothing.", "a b c"];
const RANKED = { model: RANKER, query: QUERY, documents: TEXTS };

const vectorsOf = ({ data }) => data.map((entry) => entry.embedding);
export const created = async (client, options) =>
  vectorsOf(await client.embeddings.create({ model: MODEL, input: TEXTS, ...options }));
export const embeddedByCohere = async (client, options) => {
  const asked = { model: MODEL, texts: TEXTS, inputType: "clustering", embeddingTypes: ["float"] };
  return (await client.embed({ ...asked, ...options })).embeddings;
};
export const embeddedByAi = async (provider, values = TEXTS, providerOptions = {}) => {
  const model = provider.embeddingModel(MODEL);
  return (await embedMany({ model, values, providerOptions })).embeddings;
};
export const embeddedByVoyage = async (at, options) =>
  vectorsOf(await clients.voyage(at).embed({ model: MODEL, input: TEXTS, ...options }));
const scored = (results) => results.map(({ index, relevanceScore }) => [index, relevanceScore]);
const rankedByCohere = async (client, documents = TEXTS) =>
  scored((await client.rerank({ ...RANKED, documents, topN: 2 })).results);
export const rankedByAi = async (at, documents) => {
  const model = clients.aiCohere(at).reranking(RANKER);
  const { ranking } = await rerank({ model, query: QUERY, documents, topN: 2 });
  return ranking.map(({ originalIndex, score }) => [originalIndex, score]);
};

export const EMBEDDERS = {
  "openai embeddings": (at) => created(clients.openai(at)),
  "openai embeddings, float": (at) => created(clients.openai(at), { encoding_format: "float" }),
  "openai AzureOpenAI": (at) => created(clients.azure(at)),
  "cohere-ai embed": (at) =>
    embeddedByCohere(clients.cohereV1(at), { embeddingTypes: undefined }),
  "cohere-ai embed, v2": async (at) => (await embeddedByCohere(clients.cohereV2(at))).float,
  "cohere-ai embed, inputs": async (at) => {
    const inputs = TEXTS.map((text) => ({ content: [{ type: "text", text }] }));
    return (await embeddedByCohere(clients.cohereV2(at), { texts: undefined, inputs })).float;
  },
  "@huggingface/inference": (at) =>
    clients.huggingFace(at, `/hf/${MODEL}`).featureExtraction({ inputs: TEXTS }),
  "@huggingface/inference, root": (at) =>
    clients.huggingFace(at).featureExtraction({ inputs: TEXTS }),
  "@ai-sdk/openai": (at) => embeddedByAi(clients.aiOpenai(at)),
  "@ai-sdk/openai-compatible": (at) => embeddedByAi(clients.aiCompatible(at)),
  "@ai-sdk/cohere": (at) => embeddedByAi(clients.aiCohere(at)),
  "@langchain/openai": (at) => clients.langchainOpenai(at).embedDocuments(TEXTS),
  "@langchain/openai Azure": (at) => clients.langchainAzure(at).embedDocuments(TEXTS),
  "@langchain/cohere": (at) => clients.langchainCohere(at).embedDocuments(TEXTS),
  "@langchain/ollama": (at) => clients.langchainOllama(at).embedDocuments(TEXTS),
  "@llamaindex/openai": (at) => clients.llamaindex(at).getTextEmbeddings(TEXTS),
  "voyageai embed": (at) => embeddedByVoyage(at),
  "voyageai embed, inputType": (at) => embeddedByVoyage(at, { inputType: "query" }),
  "ollama embed": async (at) =>
    (await clients.ollama(at).embed({ model: `${MODEL}:latest`, input: TEXTS })).embeddings,
  "ollama embeddings": async (at) => {
    const client = clients.ollama(at);
    const asked = TEXTS.map((prompt) => client.embeddings({ model: MODEL, prompt }));
    return (await Promise.all(asked)).map((answer) => answer.embedding);
  },
  "@chroma-core/openai": (at) => clients.chromaOpenai(at).generate(TEXTS),
  "@chroma-core/huggingface-server": (at) => clients.chromaServer(at).generate(TEXTS),
};
// which of the model's prompts a package chooses
export const PROMPTS = {
  "@ai-sdk/cohere": "query",
  "@langchain/cohere": "document",
  "voyageai embed, inputType": "query",
};
// whose route scales vectors to length 1, as text-embeddings-inference's does
export const SCALED = ["@huggingface/inference, root", "@chroma-core/huggingface-server"];

// index and score of each
export const RANKERS = {
  "cohere-ai rerank": (at) => rankedByCohere(clients.cohereV1(at)),
  "cohere-ai rerank, v2": (at) => rankedByCohere(clients.cohereV2(at)),
  "cohere-ai rerank, objects": (at) => {
    const documents = TEXTS.map((text) => ({ text, title: "a b" }));
    return rankedByCohere(clients.cohereV1(at), documents);
  },
  "@ai-sdk/cohere rerank": (at) => rankedByAi(at, TEXTS),
  "@langchain/cohere rerank": async (at) =>
    scored(await clients.langchainRerank(at).rerank(TEXTS, QUERY)),
  "voyageai rerank": async (at) =>
    scored((await clients.voyage(at).rerank({ ...RANKED, topK: 2 })).data),
};
