// What each package is asked for: vectors of TEXTS, or the best two of them.

import {
  aiCohere, aiCompatible, aiOpenai, azure, bearing, cohere, huggingFace, langchainCohere, ollama,
  openai, voyage,
} from "./clients.js";

export const QUERY = "the same text";
export const TEXTS = ["pads are dropped", "padding costs nothing.", "a b c"];
export const [MODEL, RANKER] = ["embedder", "reranker"];
const RANKED = { model: RANKER, query: QUERY, documents: TEXTS };

const vectorsOf = ({ data }) => data.map((entry) => entry.embedding);
export const created = async (client, options) =>
  vectorsOf(await client.embeddings.create({ model: MODEL, input: TEXTS, ...options }));
export const embeddedByCohere = async (client, options) => {
  const asked = { model: MODEL, texts: TEXTS, inputType: "clustering", embeddingTypes: ["float"] };
  return (await client.embed({ ...asked, ...options })).embeddings;
};
export const embeddedByAi = async (provider, values = TEXTS, providerOptions = {}) => {
  const { embedMany } = await import("ai");
  const model = provider.embeddingModel(MODEL);
  return (await embedMany({ model, values, providerOptions })).embeddings;
};
const scored = (results) => results.map(({ index, relevanceScore }) => [index, relevanceScore]);
const rankedByCohere = async (client, documents = TEXTS) =>
  scored((await client.rerank({ ...RANKED, documents, topN: 2 })).results);
export const rankedByAi = async (at, documents) => {
  const { rerank } = await import("ai");
  const model = (await aiCohere(at)).reranking(RANKER);
  const { ranking } = await rerank({ model, query: QUERY, documents, topN: 2 });
  return ranking.map(({ originalIndex, score }) => [originalIndex, score]);
};

export const EMBEDDERS = {
  "openai embeddings": async (at) => created(await openai(at)),
  "openai embeddings, float": async (at) =>
    created(await openai(at), { encoding_format: "float" }),
  "openai AzureOpenAI": async (at) => created(await azure(at)),
  "cohere-ai embed": async (at) =>
    embeddedByCohere(await cohere(at, "CohereClient"), { embeddingTypes: undefined }),
  "cohere-ai embed, v2": async (at) => (await embeddedByCohere(await cohere(at))).float,
  "cohere-ai embed, inputs": async (at) => {
    const inputs = TEXTS.map((text) => ({ content: [{ type: "text", text }] }));
    return (await embeddedByCohere(await cohere(at), { texts: undefined, inputs })).float;
  },
  "@huggingface/inference": async (at) =>
    (await huggingFace(at, `/hf/${MODEL}`)).featureExtraction({ inputs: TEXTS }),
  "@huggingface/inference, root": async (at) =>
    (await huggingFace(at)).featureExtraction({ inputs: TEXTS }),
  "@ai-sdk/openai": async (at) => embeddedByAi(await aiOpenai(at)),
  "@ai-sdk/openai-compatible": async (at) => embeddedByAi(await aiCompatible(at)),
  "@ai-sdk/cohere": async (at) => embeddedByAi(await aiCohere(at)),
  "@langchain/openai": async ({ url, key }) => {
    const { OpenAIEmbeddings } = await import("@langchain/openai");
    const configuration = { baseURL: `${url}/v1`, dangerouslyAllowBrowser: true };
    return new OpenAIEmbeddings({ model: MODEL, apiKey: key, configuration }).embedDocuments(TEXTS);
  },
  "@langchain/cohere": async (at) =>
    (await langchainCohere(at, "CohereEmbeddings", { model: MODEL })).embedDocuments(TEXTS),
  "@langchain/ollama": async ({ url, key }) => {
    const { OllamaEmbeddings } = await import("@langchain/ollama");
    const options = { model: MODEL, baseUrl: url, headers: bearing(key) };
    return new OllamaEmbeddings(options).embedDocuments(TEXTS);
  },
  "ollama embed": async (at) =>
    (await (await ollama(at)).embed({ model: `${MODEL}:latest`, input: TEXTS })).embeddings,
  "ollama embeddings": async (at) => {
    const client = await ollama(at);
    const asked = TEXTS.map((prompt) => client.embeddings({ model: MODEL, prompt }));
    return (await Promise.all(asked)).map((answer) => answer.embedding);
  },
  "voyageai embed": async (at) =>
    vectorsOf(await (await voyage(at)).embed({ model: MODEL, input: TEXTS })),
  "voyageai embed, inputType": async (at) =>
    vectorsOf(await (await voyage(at)).embed({ model: MODEL, input: TEXTS, inputType: "query" })),
  "@llamaindex/openai": async ({ url, key }) => {
    const { OpenAIEmbedding } = await import("@llamaindex/openai");
    const client = new OpenAIEmbedding({ model: MODEL, apiKey: key, baseURL: `${url}/v1` });
    return client.getTextEmbeddings(TEXTS);
  },
  "@langchain/openai Azure": async ({ url, key }) => {
    const { AzureOpenAIEmbeddings } = await import("@langchain/openai");
    const deployment = {
      azureOpenAIBasePath: `${url}/openai/deployments`,
      azureOpenAIApiDeploymentName: MODEL,
      azureOpenAIApiVersion: "2024-02-01",
    };
    return new AzureOpenAIEmbeddings({ ...deployment, apiKey: key }).embedDocuments(TEXTS);
  },
  "@chroma-core/openai": async ({ url, key }) => {
    const { OpenAIEmbeddingFunction } = await import("@chroma-core/openai");
    const options = { modelName: MODEL, apiKey: key, apiBase: `${url}/v1` };
    return new OpenAIEmbeddingFunction(options).generate(TEXTS);
  },
  "@chroma-core/huggingface-server": async ({ url, key }) => {
    const { HuggingfaceServerEmbeddingFunction } = await import("@chroma-core/huggingface-server");
    return new HuggingfaceServerEmbeddingFunction({ url, apiKey: key }).generate(TEXTS);
  },
};
// which of the model's prompts a package chooses
export const PROMPTS = {
  "@ai-sdk/cohere": "query",
  "@langchain/cohere": "passage",
  "voyageai embed, inputType": "query",
};
// whose route scales vectors to length 1, as text-embeddings-inference's does
export const SCALED = ["@huggingface/inference, root", "@chroma-core/huggingface-server"];

// index and score of each
export const RANKERS = {
  "cohere-ai rerank": async (at) => rankedByCohere(await cohere(at, "CohereClient")),
  "cohere-ai rerank, v2": async (at) => rankedByCohere(await cohere(at)),
  "cohere-ai rerank, objects": async (at) => {
    const documents = TEXTS.map((text) => ({ text, title: "a b" }));
    return rankedByCohere(await cohere(at, "CohereClient"), documents);
  },
  "@ai-sdk/cohere rerank": async (at) => rankedByAi(at, TEXTS),
  "@langchain/cohere rerank": async (at) => {
    const client = await langchainCohere(at, "CohereRerank", { model: RANKER, topN: 2 });
    return scored(await client.rerank(TEXTS, QUERY));
  },
  "voyageai rerank": async (at) =>
    scored((await (await voyage(at)).rerank({ ...RANKED, topK: 2 })).data),
};
