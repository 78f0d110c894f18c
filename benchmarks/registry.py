"""All that shows a claim: experiments of this folder, and the opt-in marks of the tests."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

from benchmarks.clients import groups as clients
from benchmarks.findings import BUILD, MINILM, Findings, Options

BERT, REAL, TRAINED = str(MINILM), "build/real-models", "build/trained/cross-encoder"
SERVED, TINY, PRESET = "bundles/all-minilm-l6-v2", "bundles/notebook", "bundles/minilm"
PEER, RAY, ARM = (f"build/{name}/ready" for name in ("sentence-transformers", "ray", "processors"))
# the first of each minor version that pyproject.toml allows, beside the one that is installed
ONNXRUNTIMES = ("1.25.0", "1.26.0", "1.27.0", "1.28.0", "1.29.0", "1.30.0", "1.31.1")

# that run folders of ONNX: the last whose bits change with the batch, the first and a later one
# whose do not
ONNX_HOSTS = ("1.20.1", "1.21.1", "1.28.0")


@dataclass(frozen=True)
class Experiment:
    """`python -m benchmarks NAME`."""

    summary: str
    entry: str  # module:function
    minutes: float  # about, with all parts
    needs: Sequence[str] = ()
    only: str = ""  # what `--only` names
    beside: str = ""  # "in turn": one of the subjects; "again": run for each of the two checkouts
    environment: str = ""  # the folder of build/ whose interpreter runs it

    def run(self, options: Options) -> Findings:
        module, function = self.entry.split(":")
        run: Callable[[Options], Findings] = getattr(import_module(module), function)
        return run(options)

    @property
    def python(self) -> str:
        """The interpreter; empty where this one will do."""
        return str(BUILD / self.environment / "bin/python") if self.environment else ""


@dataclass(frozen=True)
class Proof:
    """`pytest -m NAME`: tests that are deselected unless they are asked for."""

    summary: str
    minutes: float
    needs: Sequence[str] = ()


STRESS = "benchmarks.stress.scenarios"
EXPERIMENTS = {
    "bench": Experiment(
        "beside a naive server, and Infinity if `make build/infinity/ready` was run",
        "benchmarks.bench.experiment:run",
        9,
        (BERT, PRESET, TINY, SERVED, "bundles/minilm-padded"),
        only="beginnings of lines: small-8 big texts open ...",
        beside="in turn",
    ),
    "texts": Experiment(
        "texts per second beside sentence-transformers: vectors and bits compared",
        "benchmarks.sentences.beside:run",
        8,
        (BERT, SERVED, PEER),
    ),
    "engines": Experiment(
        "texts per second of the engines that a user would take instead: bits, recall, memory",
        "benchmarks.sentences.engines:run",
        8,
        (BERT, SERVED, "build/engines/ready"),
        only="beginnings of engines: torch onnxruntime openvino ctranslate2 fastembed addnorm",
    ),
    "modules": Experiment(
        "random modules, exported by one call: recognized, as they are, refused, served wrongly",
        "benchmarks.random_modules:run",
        60,
    ),
    "as-it-is": Experiment(
        "a module served as it is beside its recognized path and a naive server on its graph",
        "benchmarks.as_it_is:run",
        8,
        only="beginnings of loads: ids, vectors, Qwen2, MegatronBert, RoFormer",
    ),
    "cache": Experiment(
        "what the cache brings where traffic repeats, and what it costs where it does not",
        "benchmarks.cache:run",
        8,
        (PRESET,),
        only="repeats or new",
    ),
    "in-time": Experiment(
        "a reranker with 100 ms to 1 s for 300 documents: how late, how many, which of the best",
        "benchmarks.in_time:run",
        8,
        (TRAINED, SERVED),
    ),
    "cold": Experiment(
        "from `addnorm serve` to the first answer, exported or proved before or not, and after"
        " idleness; beside a naive server's start",
        "benchmarks.cold:run",
        8,
        (BERT, SERVED, "bundles/minilm-padded"),
    ),
    "corpus": Experiment(
        "`addnorm embed`: tokens per second beside the engine alone",
        "benchmarks.corpus:speed",
        4,
        (SERVED,),
        only="fp32 or int8",
    ),
    "overload": Experiment(
        "five times the capacity for 60 s: in time or rejected, with Retry-After",
        f"{STRESS}.overload:run",
        2,
        (PRESET,),
    ),
    "swaps": Experiment(
        "100 new versions under load: each answer from the right one, with the same bits",
        f"{STRESS}.swaps:run",
        5,
        (PRESET,),
    ),
    "rollback": Experiment(
        "a version rolled back and forth under load: each answer right",
        f"{STRESS}.rollback:run",
        0.5,
        (PRESET,),
    ),
    "other-keys": Experiment(
        "one key asks for all that it can: another's small requests are answered as alone",
        f"{STRESS}.other_keys:run",
        12,
        (SERVED,),
        only="parts of what the key sends",
        beside="again",
    ),
    "ray": Experiment(
        "Ray Serve on three raylets: an update, deaths under load, autoscaling",
        "benchmarks.ray_serve.experiment:run",
        7,
        (RAY, PRESET, TINY, "build/ray/bundles/notebook/2"),
        only="update, deaths, autoscaling",
        environment="ray",
    ),
    "modernbert": Experiment(
        "ModernBERT-base's shape beside transformers behind FastAPI; what long sequences cost",
        "benchmarks.families:modernbert",
        8,
        only="padded, small, tokens",
    ),
    "deberta": Experiment(
        "DeBERTa-v3-base's shape beside transformers behind FastAPI, and beside BERT-base's",
        "benchmarks.families:deberta",
        8,
        only="padded, small, tokens",
    ),
    "qwen3": Experiment(
        "Qwen3-Embedding-0.6B's shape beside transformers behind FastAPI",
        "benchmarks.families:qwen3",
        8,
    ),
    "shapes": Experiment(
        "MiB and texts per second of the shapes of models that people search for",
        "benchmarks.families:shapes",
        45,
        only="beginnings of shapes: minilm-l6 bert deberta ...",
    ),
    "processors": Experiment(
        "equal bits on AVX2 and NEON, emulated: every preset, family and output",
        "benchmarks.processors.experiment:run",
        25,
        (BERT, ARM, "qemu-aarch64"),
        only="names of models, and of processors: neoverse-n1 bert; also sandybridge, sve, sme",
    ),
    "onnxruntimes": Experiment(
        "which versions of onnxruntime give equal bits, on this machine",
        "benchmarks.processors.experiment:versions",
        20,
        (BERT, *(f"build/onnxruntime/{version}/ready" for version in ONNXRUNTIMES)),
        only="names of models",
    ),
    "gpu": Experiment(
        "of a GPU, with ADDNORM_PROVIDER=cuda: differences, bits, speed beside PyTorch",
        "benchmarks.gpu.experiment:run",
        20,
        only="beginnings of steps: agreement, speed, http",
    ),
}
GROUPS = {"stress": ("overload", "swaps", "rollback", "other-keys")}  # a name for several
PROOFS = {
    "families": Proof("every family and head through HTTP, beside transformers", 4),
    "modules": Proof("modules as people write them, over HTTP", 15),
    "real_models": Proof("checkpoints with trained weights, beside transformers", 4, (REAL,)),
    "lens": Proof(
        "hidden states and attention beside transformers; rxnmapper maps atoms by them",
        3,
        (BERT, REAL, "build/rxnmapper/ready"),
    ),
    "client_packages": Proof(
        "packages with a URL, a key and a model set: bits and order as of the plain routes",
        20,
        (SERVED, *(f"build/{name}/ready" for name in sorted(set(clients.GROUPS.values())))),
    ),
    "js_clients": Proof(
        "npm packages with a URL, a key and a model set, under node and in Chromium: the same",
        1.5,
        ("build/js-clients/ready", "node"),
    ),
    "system_one": Proof(
        "jevcompat's suite and typesafe-sdk at /v1/systemone; 1,000 pairs of requests, equal bits",
        4,
        (BERT, "build/systemone/ready"),
    ),
    "lm_eval": Proof(
        "lm-eval's local-completions against a server, beside its own model",
        5,
        ("build/lm-eval/ready",),
    ),
    "tasks": Proof(
        "trained models: scores beside sentence-transformers, int8 tags as right as PyTorch's",
        3,
        (TRAINED, PEER),
    ),
    "gliner": Proof(
        "folders that gliner saves: its names of 200 texts over HTTP, and kept answers of tests",
        8,
        ("build/gliner/ready",),
    ),
    "saved_folders": Proof(
        "43 folders that sentence-transformers and transformers save: the author's answers over"
        " HTTP",
        13,
    ),
    "onnx_hosts": Proof(
        "a folder of ONNX in fastembed, sentence-transformers, onnxruntime and node: the same bits",
        12,
        (
            BERT,
            SERVED,
            "build/onnx-hosts/ready",
            "build/js-onnx/ready",
            "node",
            *(f"build/onnxruntime/{version}/ready" for version in ONNX_HOSTS),
        ),
    ),
    "check_index": Proof(
        "`addnorm check` tells apart indexes made in many ways", 4, (BERT, SERVED, REAL, PEER)
    ),
    "killed_job": Proof("`addnorm embed` of 600,000 texts, killed twice: the same bytes", 10),
    "object_store": Proof(
        "`addnorm embed` from and to a local S3 server, killed twice: the same bytes",
        1,
        ("build/s3/ready",),
    ),
    "search": Proof(
        "the programs of examples/search/: the same rows as an exact search",
        2,
        (SERVED, "build/search/ready"),
    ),
    "mutants": Proof("450 mistakes of the exporter, in the file and what it is compared with", 10),
    "real_tokenizers": Proof(
        "folders with tokenizers of real sizes, of every class, are exported", 5, (BERT, "npm")
    ),
    "misread": Proof(
        "checkpoints read wrongly on purpose, one thing at a time: all refused",
        5,
    ),
    "large_model": Proof("a model of more than 2 GB: memory and answers; needs 8 GB", 8),
    "mixed_fleet": Proof(
        "this machine and an emulated ARM behind haproxy: the same bits and one fingerprint",
        3,
        (ARM, "qemu-aarch64"),
    ),
    "chart": Proof("the Helm chart, rendered and compared with schemas", 1, ("build/chart/ready",)),
    "pictures": Proof(
        "takes docs/playground.png, and the pages in light, dark and at phone width",
        1,
        (SERVED, "chromedriver"),
    ),
}
