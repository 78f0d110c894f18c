// The clients, of { url, key }. Each package is imported where it is used: not all run in a page.

export const isPage = typeof document !== "undefined";
export const bearing = (key) => ({ authorization: `Bearer ${key}` });

export const openai = async ({ url, key }) => {
  const { default: OpenAI } = await import("openai");
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: key, dangerouslyAllowBrowser: true });
};
export const azure = async ({ url, key }) => {
  const { AzureOpenAI } = await import("openai");
  const options = { apiVersion: "2024-02-01", dangerouslyAllowBrowser: true };
  return new AzureOpenAI({ endpoint: url, apiKey: key, ...options });
};
export const cohere = async ({ url, key }, version = "CohereClientV2") => {
  const { default: cohereAi } = await import("cohere-ai"); // CommonJS
  return new cohereAi[version]({ token: key, environment: url });
};
export const huggingFace = async ({ url, key }, path = "") => {
  const { InferenceClient } = await import("@huggingface/inference");
  return new InferenceClient(key, { endpointUrl: url + path });
};
export const aiOpenai = async ({ url, key }) => {
  const { createOpenAI } = await import("@ai-sdk/openai");
  return createOpenAI({ baseURL: `${url}/v1`, apiKey: key });
};
export const aiCompatible = async ({ url, key }) => {
  const { createOpenAICompatible } = await import("@ai-sdk/openai-compatible");
  return createOpenAICompatible({ name: "addnorm", baseURL: `${url}/v1`, apiKey: key });
};
export const aiCohere = async ({ url, key }) => {
  const { createCohere } = await import("@ai-sdk/cohere");
  return createCohere({ baseURL: `${url}/v2`, apiKey: key });
};
export const langchainCohere = async (at, name, options) => {
  const { [name]: Made } = await import("@langchain/cohere");
  return new Made({ ...options, client: await cohere(at, "CohereClient") });
};
export const voyage = async ({ url, key }) => {
  const { VoyageAIClient } = await import("voyageai");
  return new VoyageAIClient({ apiKey: key, environment: `${url}/v1` });
};
export const ollama = async ({ url, key }) => {
  const { Ollama } = isPage ? await import("ollama/browser") : await import("ollama");
  return new Ollama({ host: url, headers: bearing(key) });
};
