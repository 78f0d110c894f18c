"""The SDKs that services publish for themselves, pointed at this server."""

import asyncio
from collections.abc import Callable
from typing import Any

from benchmarks.clients.rows import (
    KEY,
    MODEL,
    QUERY,
    RANKER,
    TEXTS,
    TOP,
    Site,
    absent,
    bits,
    order,
    refusal,
    run,
)


def of_openai(answer: Any) -> Any:
    return [entry.embedding for entry in answer.data]


def openai_sdk(site: Site, **fields: Any) -> Any:
    import openai

    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key=KEY)
    assert MODEL in [model.id for model in client.models.list()]
    return of_openai(client.embeddings.create(model=MODEL, input=TEXTS, **fields))


def openai_async(site: Site) -> Any:
    async def send() -> Any:
        import openai

        async with openai.AsyncOpenAI(base_url=f"{site.url}/v1", api_key=KEY) as client:
            return of_openai(await client.embeddings.create(model=MODEL, input=TEXTS))

    return asyncio.run(send())


def openai_wrong_key(site: Site) -> Any:
    import openai

    client = openai.OpenAI(base_url=f"{site.url}/v1", api_key="a-key-of-somebody-else")
    return client.embeddings.create(model=MODEL, input=TEXTS)


def azure_openai(site: Site) -> Any:
    import openai

    client = openai.AzureOpenAI(azure_endpoint=site.url, api_key=KEY, api_version="2024-02-01")
    return of_openai(client.embeddings.create(model=MODEL, input=TEXTS))


def azure_v1(site: Site) -> Any:
    import openai

    client = openai.OpenAI(base_url=f"{site.url}/openai/v1", api_key=KEY)
    return of_openai(client.embeddings.create(model=MODEL, input=TEXTS))


def azure_inference(path: str, **fields: Any) -> Callable[[Site], Any]:
    def call(site: Site) -> Any:
        from azure.ai.inference import EmbeddingsClient
        from azure.core.credentials import AzureKeyCredential

        client = EmbeddingsClient(site.url + path, AzureKeyCredential(KEY), model=MODEL)
        return of_openai(client.embed(input=TEXTS, **fields))

    return call


def mistral_embed(site: Site) -> Any:
    from mistralai.client import Mistral

    client = Mistral(api_key=KEY, server_url=site.url)
    return of_openai(client.embeddings.create(model=MODEL, inputs=TEXTS))


def mistral_models(site: Site) -> Any:
    from mistralai.client import Mistral

    return Mistral(api_key=KEY, server_url=site.url).models.list()


def ollama_client(site: Site) -> Any:
    import ollama

    return ollama.Client(site.url, headers={"authorization": f"Bearer {KEY}"})


def ollama_embed(site: Site) -> Any:
    client = ollama_client(site)
    assert f"{MODEL}:latest" in [model.model for model in client.list().models]
    assert "embedding" in client.show(MODEL).capabilities
    return client.embed(f"{MODEL}:latest", TEXTS).embeddings


def ollama_embeddings(site: Site) -> Any:
    return [ollama_client(site).embeddings(MODEL, text).embedding for text in TEXTS]


def ollama_generate(site: Site) -> Any:
    return ollama_client(site).generate(MODEL, QUERY)


def voyage_embed(site: Site, **fields: Any) -> Any:
    import voyageai

    client = voyageai.Client(KEY, base_url=f"{site.url}/v1")
    return client.embed(TEXTS, model=MODEL, **fields).embeddings


def voyage_rerank(site: Site) -> Any:
    import voyageai

    client = voyageai.Client(KEY, base_url=f"{site.url}/v1")
    return [entry.index for entry in client.rerank(QUERY, TEXTS, model=RANKER, top_k=TOP).results]


def cohere_embed_v2(site: Site) -> Any:
    import cohere

    client = cohere.ClientV2(KEY, base_url=site.url)
    assert MODEL in [model.name for model in client.models.list(endpoint="embed").models]
    fields: dict[str, Any] = {"input_type": "clustering", "embedding_types": ["float"]}
    return client.embed(model=MODEL, texts=TEXTS, **fields).embeddings.float_


def cohere_embed_v1(site: Site) -> Any:
    import cohere

    client = cohere.Client(KEY, base_url=site.url)
    return client.embed(model=MODEL, texts=TEXTS, input_type="clustering").embeddings


def cohere_rerank(version: str) -> Callable[[Site], Any]:
    def call(site: Site) -> Any:
        import cohere

        client = getattr(cohere, version)(KEY, base_url=site.url)
        answer = client.rerank(model=RANKER, query=QUERY, documents=TEXTS, top_n=TOP)
        return [entry.index for entry in answer.results]

    return call


def hub_client(site: Site, path: str = "") -> Any:
    from huggingface_hub import InferenceClient

    return InferenceClient(site.url + path, token=KEY)


def hub_features(path: str) -> Callable[[Site], Any]:
    def call(site: Site) -> Any:
        client = hub_client(site, path)
        return [client.feature_extraction(text, normalize=True)[0] for text in TEXTS]

    return call


ROWS = (
    bits("openai", "embeddings.create", openai_sdk),
    bits("openai", "encoding_format float", lambda site: openai_sdk(site, encoding_format="float")),
    bits("openai", "AsyncOpenAI", openai_async),
    refusal("openai", "a wrong key", "AuthenticationError", openai_wrong_key),
    bits("openai", "AzureOpenAI", azure_openai),
    bits("openai", "OpenAI at /openai/v1", azure_v1),
    bits("azure-ai-inference", "EmbeddingsClient at the root", azure_inference("")),
    bits("azure-ai-inference", "at /v1, input_type", azure_inference("/v1", input_type="text")),
    bits("mistralai", "embeddings.create", mistral_embed),
    refusal("mistralai", "models.list", "expected object with 'type' field", mistral_models),
    bits("ollama", "list, show, embed", ollama_embed),
    bits("ollama", "embeddings", ollama_embeddings),
    refusal("ollama", "generate", "there is no such path", ollama_generate),
    bits("voyageai", "embed", voyage_embed),
    bits("voyageai", "embed, output_dtype", lambda site: voyage_embed(site, output_dtype="float")),
    order("voyageai", "rerank", voyage_rerank),
    absent("voyageai", "count_tokens, truncate in the client", "its tokenizer is on a hub"),
    bits("cohere", "ClientV2: models.list, embed", cohere_embed_v2),
    bits("cohere", "Client.embed", cohere_embed_v1),
    order("cohere", "ClientV2.rerank", cohere_rerank("ClientV2")),
    order("cohere", "Client.rerank", cohere_rerank("Client")),
    bits("huggingface_hub", "feature_extraction at the root", hub_features("")),
    bits("huggingface_hub", "feature_extraction at /hf/NAME", hub_features(f"/hf/{MODEL}")),
)

if __name__ == "__main__":
    run(ROWS)
