"""The figures that the README begins with: a table over several experiments."""

from benchmarks.documents.figures import Kept, figure
from benchmarks.tables import table

FP32, INT8 = "Addnorm fp32", "Addnorm int8"
BITS = "answers under load with the bits of each sequence alone"
OTHER_BITS = "texts with other bits in other requests"
NAIVE, FASTAPI = "FastAPI + onnxruntime", "FastAPI + sentence-transformers"
RATIOS = (  # what is sent, beside what, the row of the experiment's table
    ("32 sequences, 70 % padding, 8 callers", NAIVE, "bench / big / useful tokens/s"),
    ("1 to 4 sequences, 32 callers", NAIVE, "bench / small-32 / useful tokens/s"),
    (
        "whole hidden states as JSON, 8 callers",
        NAIVE,
        "bench / hidden states as JSON, 8 callers / useful tokens/s",
    ),
    (
        "512 texts in one call",
        "`SentenceTransformer.encode` without a server",
        "texts / all texts in one call; encode without any server / texts/s",
    ),
    ("32 texts a request, 8 callers", FASTAPI, "texts / 8 callers, 32 texts a request / texts/s"),
    ("1 text a request, 8 callers", FASTAPI, "texts / 8 callers, 1 text a request / texts/s"),
)


def headlines_table(kept: Kept) -> str:
    rows = [
        (sent, beside, *(figure(kept, f"{row} / {who} / ratio") for who in (FP32, INT8)))
        for sent, beside, row in RATIOS
    ]
    bits = (figure(kept, f"bench / {who} / {BITS}") for who in (FP32, INT8))
    changed, *ours = (
        figure(kept, f"texts / {who} / {OTHER_BITS}") for who in ("FastAPI", "fp32", "int8")
    )
    rows += [
        ("answers with the bits of each sequence alone", "", *bits),
        ("texts whose bits differ between two requests", f"{FASTAPI}: {changed}", *ours),
    ]
    return table(["load", "beside", "fp32", "int8"], rows)
