"""OpenAI's embeddings, where the path names the model as a deployment, or begins with /openai.

The path's name wins: Azure's clients repeat it in the body, or the name of a model.
"""

from dataclasses import replace

from addnorm.service.protocols.openai import embeddings

OPENAIS = embeddings.ENDPOINTS[0]
ENDPOINTS = (
    replace(OPENAIS, path="/openai/v1/embeddings", name="azure_v1_embeddings"),
    replace(
        OPENAIS,
        path="/openai/deployments/{model:path}/embeddings",
        name="azure_embeddings",
        examples=dict(zip(OPENAIS.answers, OPENAIS.examples.values(), strict=False)),
    ),
)
