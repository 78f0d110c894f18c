"""The table of docs/models.md: names that people search for, and what their shapes cost."""

from typing import NamedTuple

from benchmarks.documents.figures import Kept, figure
from benchmarks.tables import table

COLUMNS = ("name", "task", "longest text", "MiB", "texts/s, 32 tokens", "texts/s, 256 tokens")
NUM_FACTS = 3  # the columns before the costs


class Model(NamedTuple):
    """A model of the hub. shape: of benchmarks.families. longest: tokens of a text or a pair."""

    name: str
    task: str
    shape: str
    longest: int


MODELS = (
    Model("sentence-transformers/all-MiniLM-L6-v2", "embed", "minilm-l6", 256),
    Model("sentence-transformers/all-MiniLM-L12-v2", "embed", "minilm-l12", 128),
    Model("sentence-transformers/all-mpnet-base-v2", "embed", "mpnet-base", 384),
    Model("BAAI/bge-small-en-v1.5", "embed", "minilm-l12", 512),
    Model("BAAI/bge-base-en-v1.5", "embed", "bert-base", 512),
    Model("BAAI/bge-m3", "embed (dense vectors alone)", "xlm-roberta-large", 8192),
    Model("intfloat/multilingual-e5-small", "embed", "multilingual-small", 512),
    Model("intfloat/multilingual-e5-base", "embed", "xlm-roberta-base", 512),
    Model("intfloat/multilingual-e5-large", "embed", "xlm-roberta-large", 512),
    Model("thenlper/gte-small", "embed", "minilm-l12", 512),
    Model("Alibaba-NLP/gte-modernbert-base", "embed", "modernbert-base", 8192),
    Model("Alibaba-NLP/gte-multilingual-base", "embed", "gte-multilingual-base", 8192),
    Model("mixedbread-ai/mxbai-embed-large-v1", "embed", "bert-large", 512),
    Model("nomic-ai/nomic-embed-text-v1.5", "embed", "nomic-base", 2048),
    Model("ibm-granite/granite-embedding-small-english-r2", "embed", "modernbert-small", 8192),
    Model("ibm-granite/granite-embedding-english-r2", "embed", "modernbert-base", 8192),
    Model("Qwen/Qwen3-Embedding-0.6B", "embed", "qwen3-0.6b", 32768),
    Model("cross-encoder/ms-marco-MiniLM-L6-v2", "rerank", "minilm-l6", 512),
    Model("BAAI/bge-reranker-base", "rerank", "xlm-roberta-base", 512),
    Model("BAAI/bge-reranker-v2-m3", "rerank", "xlm-roberta-large", 8192),
    Model("mixedbread-ai/mxbai-rerank-xsmall-v1", "rerank", "deberta-v3-xsmall", 512),
    Model("mixedbread-ai/mxbai-rerank-base-v1", "rerank", "deberta-v3-base", 512),
    Model("tomaarsen/Qwen3-Reranker-0.6B-seq-cls", "rerank", "qwen3-0.6b", 32768),
    Model("meta-llama/Llama-Prompt-Guard-2-22M", "classify", "deberta-v3-xsmall", 512),
    Model("meta-llama/Llama-Prompt-Guard-2-86M", "classify", "mdeberta-v3-base", 512),
    Model("protectai/deberta-v3-base-prompt-injection-v2", "classify", "deberta-v3-base", 512),
    Model("dslim/bert-base-NER", "tag", "bert-base", 512),
    Model("MoritzLaurer/deberta-v3-base-zeroshot-v2.0", "zero-shot", "deberta-v3-base", 512),
)


def models_table(kept: Kept) -> str:
    """Each cost in fp32/int8. No costs where no run of `shapes` is kept."""
    costs = COLUMNS[NUM_FACTS:] if "shapes" in kept else ()
    rows = (
        (f"`{name}`", task, f"{longest:,}", *(_both(kept, shape, cost) for cost in costs))
        for name, task, shape, longest in MODELS
    )
    return table((*COLUMNS[:NUM_FACTS], *costs), rows)


def _both(kept: Kept, shape: str, cost: str) -> str:
    if f"`{shape}`" not in kept["shapes"]["report"]:
        return "-"
    return "/".join(figure(kept, f"shapes / {shape} / {cost}, {who}") for who in ("fp32", "int8"))
