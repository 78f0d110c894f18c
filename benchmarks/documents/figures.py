"""The figures that documents quote: benchmarks/figures.json, the last kept run of each experiment.

A run writes build/benchmarks/figures.json; `keep` takes it over from there, once somebody has read
it. A figure is old once more than MOST_COMMITS commits changed the code that it measures.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.registry import ALL, EXPERIMENTS, GROUPS
from benchmarks.report import Report, commits_since
from benchmarks.tables import table

KEPT = Path("benchmarks/figures.json")  # in the repository
FACTS = ("commit", "machine", "missed", "report")
RATIO = re.compile(r"(\d[\d.,]* x)")
Kept = Mapping[str, Mapping[str, Any]]
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
)
ENCODE = ("512 texts in one call", "`SentenceTransformer.encode`, no server")
OVER_ENCODE = "engines / Addnorm {}, over HTTP / beside sentence-transformers, PyTorch"
COLUMNS = ("name", "task", "longest text", "MiB", "texts/s, 32 tokens", "texts/s, 256 tokens")
NUM_FACTS = 3  # the columns before the costs
MOST_COMMITS = 300
OLD = ", older than the code"
QUOTED = {"headlines": ("bench", "engines"), "models": ("shapes",)}  # by blocks of several figures


def read(path: Path) -> dict[str, Mapping[str, Any]]:
    """Entries by the name of the experiment."""
    return json.loads(path.read_text()) if path.exists() else {}


def with_ages(runs: Kept, root: Path, most_commits: int = MOST_COMMITS) -> Kept:
    """The entries with `age`: the commits since that changed what they measure, or None where git
    does not know; and with `is_old`."""
    ages = {
        name: commits_since(entry["commit"], ALL[name].measures, root)
        for name, entry in runs.items()
    }
    return {
        name: {**entry, "age": ages[name], "is_old": (ages[name] or 0) > most_commits}
        for name, entry in runs.items()
    }


def keep(names: Sequence[str], report: Report, path: Path) -> None:
    """Takes over the last runs of these experiments and groups. ValueError where there is none."""
    runs, kept_runs = report.read(), read(path)
    for name in (experiment for word in names for experiment in GROUPS.get(word, (word,))):
        if name not in runs:
            raise ValueError(f"{name} was not run: `python -m benchmarks {name}`")
        kept_runs[name] = {fact: runs[name][fact] for fact in FACTS}
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(kept_runs, indent=1, ensure_ascii=False) + "\n")
    os.replace(partial, path)


def report_of(runs: Kept, name: str) -> str:
    """The report of an experiment, and where it was measured. Says so where no run of it is kept.
    ValueError if nothing is so called."""
    if name not in runs and name.split()[0] in EXPERIMENTS:
        return f"No run is kept: `python -m benchmarks {name}` makes one."
    entry = _entry(runs, name)
    return f"{entry['report']}\n\n{where(entry)}"


def origin_of(runs: Kept, name: str) -> str:
    """The commit and machine of an experiment. For pages that quote a part of what it found."""
    return where(_entry(runs, name))


def missed_of(runs: Kept, name: str) -> str:
    """The number of goals that an experiment missed, in words."""
    number = len(_entry(runs, name)["missed"])
    return f"{number or 'no'} goal{'s' * (number > 1)} {'were' if number > 1 else 'was'} missed"


def table_of(runs: Kept, name: str) -> str:
    """One table of an experiment: `EXPERIMENT / number`, from 1, and ` / column` for one that is
    left out. ValueError if it has fewer tables."""
    experiment, number, *left_out = name.split(" / ")
    paragraphs = _entry(runs, experiment)["report"].split("\n\n")
    tables = [paragraph for paragraph in paragraphs if paragraph.startswith("|")]
    if int(number) > len(tables):
        raise ValueError(f"`{name}`: {experiment} has {len(tables)} tables")
    (columns, _, *rows) = map(_cells, tables[int(number) - 1].splitlines())
    places = [i for i, column in enumerate(columns) if column not in left_out]
    return table([columns[i] for i in places], ([row[i] for i in places] for row in rows))


def where(entry: Mapping[str, Any]) -> str:
    """One sentence: commit and machine."""
    facts = [f"{entry['commit']}{OLD if entry.get('is_old') else ''}"]
    for name, fact in entry["machine"].items():
        short = f"{fact:.3g}" if isinstance(fact, float) else str(fact)
        facts.append(f"{name.replace('_', ' ')} {short}")
    return f"Measured at {'; '.join(facts)}."


def figure(runs: Kept, name: str) -> str:
    """`EXPERIMENT / words of a row / column`, and ` / ratio` for the one behind a value. Each word
    is a whole cell. ValueError unless there is one such cell."""
    experiment, *words = name.split(" / ")
    is_ratio = words[-1] == "ratio"
    *cells, column = words[:-1] if is_ratio else words
    matches = {
        row[column]
        for row in _rows(_entry(runs, experiment)["report"])
        if column in row and set(cells) <= set(row.values())
    }
    if len(matches) != 1:
        raise ValueError(f"`{name}`: {len(matches)} cells of {experiment}'s tables are so called")
    (cell,) = matches
    if not is_ratio:
        return cell.partition(" (")[0]
    if ratio := RATIO.search(cell):
        return ratio[1]
    raise ValueError(f"`{name}`: there is no ratio in `{cell}`")


OF_RUNS = {
    "report": report_of,
    "measured": origin_of,
    "missed": missed_of,
    "table": table_of,
}  # the first word of a block


def experiments_of(block: str) -> tuple[str, ...]:
    """The experiments whose runs a block quotes, by the block's name."""
    kind, _, rest = block.partition(" ")
    run = rest if kind in OF_RUNS else block if " / " in block else ""
    return QUOTED.get(block, (run.partition(" ")[0],) if run else ())


def _entry(runs: Kept, name: str) -> Mapping[str, Any]:
    if name not in runs:
        raise ValueError(f"figures.json has no `{name}`: run it, then `--keep {name}`")
    return runs[name]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def _rows(markdown: str) -> Iterator[dict[str, str]]:
    """The rows of all its tables, by the names of the columns, without bold and code."""
    columns = list[str]()
    for line in markdown.splitlines():
        if not line.startswith("|"):
            columns = []
            continue
        cells = [re.sub(r"\*\*|`", "", cell) for cell in _cells(line)]
        if columns and not set(line) <= set("|-: "):
            yield dict(zip(columns, cells, strict=False))
        columns = columns or cells


def headlines_table(runs: Kept) -> str:
    rows = (
        (
            sent,
            beside,
            *(figure(runs, f"{row} / {who} / ratio") for who in ("Addnorm fp32", "Addnorm int8")),
        )
        for sent, beside, row in RATIOS
    )
    over_encode = (float(figure(runs, OVER_ENCODE.format(who))) for who in ("fp32", "int8"))
    last = (*ENCODE, *(f"{ratio:.2f} x" for ratio in over_encode))
    return table(["load", "compared with", "fp32", "int8"], [*rows, last])


class Model(NamedTuple):
    """A model of the hub. shape: of benchmarks.shapes. longest: tokens of a text or a pair."""

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
    Model("BAAI/bge-m3", "embed, sparse, rerank", "xlm-roberta-large", 8192),
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
    Model("cross-encoder/ettin-reranker-17m-v1", "rerank", "ettin-17m", 7999),
    Model("meta-llama/Llama-Prompt-Guard-2-22M", "classify", "deberta-v3-xsmall", 512),
    Model("meta-llama/Llama-Prompt-Guard-2-86M", "classify", "mdeberta-v3-base", 512),
    Model("protectai/deberta-v3-base-prompt-injection-v2", "classify", "deberta-v3-base", 512),
    Model("dslim/bert-base-NER", "tag", "bert-base", 512),
    Model("MoritzLaurer/deberta-v3-base-zeroshot-v2.0", "zero-shot", "deberta-v3-base", 512),
)


def models_table(runs: Kept) -> str:
    """Each cost in fp32/int8. No costs where no run of `shapes` is kept."""
    costs = COLUMNS[NUM_FACTS:] if "shapes" in runs else ()
    rows = (
        (f"`{name}`", task, f"{longest:,}", *(_both(runs, shape, cost) for cost in costs))
        for name, task, shape, longest in MODELS
    )
    return table((*COLUMNS[:NUM_FACTS], *costs), rows)


def _both(runs: Kept, shape: str, cost: str) -> str:
    if f"`{shape}`" not in runs["shapes"]["report"]:
        return "-"
    return "/".join(figure(runs, f"shapes / {shape} / {cost}, {who}") for who in ("fp32", "int8"))
