// The clients, of { url, key }.

import { createCohere } from "@ai-sdk/cohere";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { InferenceClient } from "@huggingface/inference";
import * as cohereOfLangchain from "@langchain/cohere";
import { OllamaEmbeddings } from "@langchain/ollama";
import { AzureOpenAIEmbeddings, OpenAIEmbeddings } from "@langchain/openai";
import cohereAi from "cohere-ai"; // CommonJS
import OpenAI, { AzureOpenAI } from "openai";
import { VoyageAIClient } from "voyageai";

export const [MODEL, RANKER] = ["embedder", "reranker"];
export const isPage = typeof document !== "undefined";
export const bearing = (key) => ({ authorization: `Bearer ${key}` });
const inPages = { dangerouslyAllowBrowser: true };
const { Ollama } = isPage ? await import("ollama/browser") : await import("ollama");
const notInPages = isPage
  ? {}
  : {
      ...(await import("@chroma-core/huggingface-server")),
      ...(await import("@chroma-core/openai")),
      ...(await import("@llamaindex/openai")),
    };

export const openai = ({ url, key }) =>
  new OpenAI({ baseURL: `${url}/v1`, apiKey: key, ...inPages });
export const azure = ({ url, key }) =>
  new AzureOpenAI({ endpoint: url, apiKey: key, apiVersion: "2024-02-01", ...inPages });
export const cohereV1 = ({ url, key }) =>
  new cohereAi.CohereClient({ token: key, environment: url });
export const cohereV2 = ({ url, key }) =>
  new cohereAi.CohereClientV2({ token: key, environment: url });
export const huggingFace = ({ url, key }, path = "") =>
  new InferenceClient(key, { endpointUrl: url + path });
export const aiOpenai = ({ url, key }) => createOpenAI({ baseURL: `${url}/v1`, apiKey: key });
export const aiCompatible = ({ url, key }) =>
  createOpenAICompatible({ name: "addnorm", baseURL: `${url}/v1`, apiKey: key });
export const aiCohere = ({ url, key }) => createCohere({ baseURL: `${url}/v2`, apiKey: key });
export const langchainOpenai = ({ url, key }) => {
  const configuration = { baseURL: `${url}/v1`, ...inPages };
  return new OpenAIEmbeddings({ model: MODEL, apiKey: key, configuration });
};
export const langchainAzure = ({ url, key }) =>
  new AzureOpenAIEmbeddings({
    azureOpenAIBasePath: `${url}/openai/deployments`,
    azureOpenAIApiDeploymentName: MODEL,
    azureOpenAIApiVersion: "2024-02-01",
    apiKey: key,
  });
export const langchainCohere = (at) =>
  new cohereOfLangchain.CohereEmbeddings({ model: MODEL, client: cohereV1(at) });
export const langchainRerank = (at) =>
  new cohereOfLangchain.CohereRerank({ model: RANKER, topN: 2, client: cohereV1(at) });
export const langchainOllama = ({ url, key }) =>
  new OllamaEmbeddings({ model: MODEL, baseUrl: url, headers: bearing(key) });
export const llamaindex = ({ url, key }) =>
  new notInPages.OpenAIEmbedding({ model: MODEL, apiKey: key, baseURL: `${url}/v1` });
export const voyage = ({ url, key }) =>
  new VoyageAIClient({ apiKey: key, environment: `${url}/v1` });
export const ollama = ({ url, key }) => new Ollama({ host: url, headers: bearing(key) });
export const chromaOpenai = ({ url, key }) =>
  new notInPages.OpenAIEmbeddingFunction({ modelName: MODEL, apiKey: key, apiBase: `${url}/v1` });
export const chromaServer = ({ url, key }) =>
  new notInPages.HuggingfaceServerEmbeddingFunction({ url, apiKey: key });
