"""All that shows a claim: experiments of this folder, and the opt-in marks of the tests.

`make proofs` runs them in this order: first those that measure speed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module

from benchmarks.clients import groups as clients
from benchmarks.findings import BUILD, MINILM, Findings, Options

BERT, ARM = str(MINILM), "build/processors/ready"
SERVED, TINY, PRESET = "bundles/all-minilm-l6-v2", "bundles/notebook", "bundles/minilm"
# the oldest that pyproject.toml allows, and one between that and the one that is installed
ONNXRUNTIMES = ("1.25.0", "1.31.1")

# that run folders of ONNX: the last whose bits change with the batch, the first and a later one
# whose do not
ONNX_HOSTS = ("1.20.1", "1.21.1", "1.28.0")
# what answers depend on, in every experiment of a server
SERVER = ("service", "model", "export/graphs")


@dataclass(frozen=True)
class Experiment:
    """`python -m benchmarks NAME`."""

    summary: str
    entry: str  # module:function
    minutes: float  # about, with all parts
    measures: Sequence[str]  # files and folders of the code that decides its figures
    needs: Sequence[str] = ()
    quoted: Sequence[str] = ()  # needed for what documents quote; it runs without, too
    only: str = ""  # what `--only` names
    beside: str = ""  # "in turn": one of the subjects; "again": run for each of the two checkouts
    environment: str = ""  # the folder of build/ whose interpreter runs it
    needs_gpu: bool = False  # `make proofs` leaves it out

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
    measures: Sequence[str] = ("service", "model", "export", "corpus", "tests/opt_in")


STRESS = "benchmarks.stress.scenarios"
EXPERIMENTS = {
    "bench": Experiment(
        "beside a naive server, and Infinity if `make build/infinity/ready` was run",
        "benchmarks.bench.experiment:run",
        9,
        (*SERVER, "benchmarks/bench"),
        (BERT, PRESET, TINY, SERVED, "bundles/minilm-padded"),
        ("build/infinity/ready",),
        only="beginnings of lines: small-8 big texts open ...",
        beside="in turn",
    ),
    "engines": Experiment(
        "texts per second of the engines that a user would take instead: bits, recall, memory",
        "benchmarks.engines:run",
        8,
        (*SERVER, "benchmarks/engines.py"),
        (BERT, SERVED, "build/engines/ready"),
        only="beginnings of engines: torch onnxruntime openvino ctranslate2 fastembed addnorm",
    ),
    "cold": Experiment(
        "from `addnorm serve` to the first answer, exported or proved before or not, and after"
        " idleness; beside a naive server's start",
        "benchmarks.cold:run",
        8,
        ("service", "model", "export"),
        (BERT, SERVED, "bundles/minilm-padded"),
    ),
    "corpus": Experiment(
        "`addnorm embed`: tokens per second beside the engine alone",
        "benchmarks.corpus:speed",
        5,
        ("corpus", "service/engine", "service/wire/texts"),
        (SERVED,),
        only="fp32 or int8",
    ),
    "shapes": Experiment(
        "MiB and texts per second of the shapes of models that people search for",
        "benchmarks.shapes:run",
        30,
        ("service/engine", "model", "export/graphs"),
        only="beginnings of shapes: minilm-l6 bert deberta ...",
    ),
    "other-keys": Experiment(
        "one key asks for all that it can: another's small requests are answered as alone",
        f"{STRESS}.other_keys:run",
        12,
        SERVER,
        (SERVED,),
        only="parts of what the key sends",
        beside="again",
    ),
    "overload": Experiment(
        "five times the capacity for 60 s: in time or rejected, with Retry-After",
        f"{STRESS}.overload:run",
        2,
        SERVER,
        (PRESET,),
    ),
    "swaps": Experiment(
        "100 new versions and 39 rollbacks under load: each answer from the right one",
        f"{STRESS}.swaps:run",
        13,
        SERVER,
        (PRESET,),
    ),
    "ray": Experiment(
        "Ray Serve on three raylets: an update, and deaths under load",
        "benchmarks.ray_serve.experiment:run",
        4,
        ("cluster", "service/server", "deploy/ray-serve.yaml"),
        ("build/ray/ready", PRESET, TINY, "build/ray/bundles/notebook/2"),
        only="update, deaths",
        environment="ray",
    ),
    "processors": Experiment(
        "equal bits on AVX2 and NEON, emulated, and with other versions of onnxruntime",
        "benchmarks.processors.experiment:run",
        35,
        ("service/engine", "service/asking", "service/arithmetic.py", "model", "export/graphs"),
        (BERT, ARM, "qemu-aarch64"),
        only="names of models, processors, versions: neoverse-n1 bert; also sandybridge, sve, sme",
    ),
    "gpu": Experiment(
        "of a GPU, with ADDNORM_PROVIDER=cuda: answers, differences, bits, speed beside PyTorch",
        "benchmarks.gpu.experiment:run",
        25,
        ("service/engine", "export/cuda", "export/graphs", "benchmarks/gpu"),
        only="beginnings of steps: answers, agreement, speed, http",
        needs_gpu=True,
    ),
}
GROUPS = {"stress": ("overload", "swaps", "other-keys")}  # a name for several
PROOFS = {
    "saved_folders": Proof(
        "43 folders that sentence-transformers and transformers save: the author's answers over"
        " HTTP",
        13,
    ),
    "gliner": Proof(
        "folders that gliner saves: its names of 200 texts over HTTP, and kept answers of tests",
        8,
        ("build/gliner/ready",),
    ),
    "modules": Proof("modules as people write them, over HTTP", 15),
    "large_model": Proof("a model of more than 2 GB: memory and answers; needs 8 GB", 8),
    "mutants": Proof("450 mistakes of the exporter, in the file and what it is compared with", 10),
    "misread": Proof("checkpoints read wrongly on purpose, one thing at a time: all refused", 5),
    "client_packages": Proof(
        "packages with a URL, a key and a model set: bits and order as of the plain routes",
        12,
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
    "onnx_hosts": Proof(
        "a folder of ONNX in fastembed, sentence-transformers, onnxruntime and node: the same bits",
        5,
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
        "`addnorm check` tells apart indexes made in many ways", 4, (BERT, SERVED)
    ),
    "search": Proof(
        "the programs of examples/search/: the same rows as an exact search",
        2,
        (SERVED, "build/search/ready"),
    ),
    "killed_job": Proof(
        "`addnorm embed` of 600,000 texts, and from and to a local S3 server, killed twice, and"
        " within a window: the same bytes",
        13,
        ("build/s3/ready", SERVED),
    ),
    "chart": Proof("the Helm chart, rendered and compared with schemas", 1, ("build/chart/ready",)),
    "pictures": Proof(
        "takes the pages' pictures, in light, dark and at phone width: to be looked at",
        1,
        (SERVED, "chromedriver"),
    ),
}
ALL: Mapping[str, Experiment | Proof] = {**EXPERIMENTS, **PROOFS}  # in the order of `make proofs`
