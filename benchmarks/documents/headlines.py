"""The figures that the README begins with: a table over several experiments."""

from benchmarks.documents.figures import Kept, figure
from benchmarks.tables import table

NAIVE = "FastAPI + onnxruntime"
RATIOS = (  # what is sent, beside what, the row of the experiment's table
    ("32 sequences, 70 % padding, 8 callers", NAIVE, "bench / big / useful tokens/s"),
    ("1 to 4 sequences, 1 caller", NAIVE, "bench / small-1 / p50, ms"),
    ("1 sequence of 512 tokens, 1 caller", NAIVE, "bench / one-512 / p50, ms"),
    (
        "hidden states as JSON, 8 callers",
        f"{NAIVE}, typed",
        "bench / the same, naive with a declared answer type / useful tokens/s",
    ),
    (
        "1 to 4 texts, 8 callers",
        "Infinity",
        "bench / 1 - 4 texts on /v1/embeddings, 8 callers / useful tokens/s",
    ),
    (
        "512 texts in one call",
        "`SentenceTransformer.encode`, no server",
        "texts / all texts in one call; encode without any server / texts/s",
    ),
    (
        "1 text a request, 8 callers",
        "FastAPI + sentence-transformers",
        "texts / 8 callers, 1 text a request / texts/s",
    ),
)


def headlines_table(kept: Kept) -> str:
    rows = (
        (
            sent,
            beside,
            *(figure(kept, f"{row} / {who} / ratio") for who in ("Addnorm fp32", "Addnorm int8")),
        )
        for sent, beside, row in RATIOS
    )
    return table(["load", "beside", "fp32", "int8"], rows)
