"""The protocols that are served, in the documentation's order."""

from addnorm.service.protocols import (
    cohere,
    huggingface,
    kserve,
    models,
    native,
    nvidia,
    ollama,
    openai,
    operations,
    shared_paths,
    tei,
    tokenization,
    vllm,
)
from addnorm.service.protocols.route import Protocol

PROTOCOLS: tuple[Protocol, ...] = (
    native.PROTOCOL,
    openai.PROTOCOL,
    tokenization.PROTOCOL,
    cohere.PROTOCOL,
    tei.PROTOCOL,
    shared_paths.PROTOCOL,
    vllm.PROTOCOL,
    openai.AZURE,
    nvidia.PROTOCOL,
    ollama.PROTOCOL,
    huggingface.PROTOCOL,
    models.PROTOCOL,
    kserve.PROTOCOL,
    operations.PROTOCOL,
)
