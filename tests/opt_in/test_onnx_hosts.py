"""The programs of docs/guides/own-program.md in the environments of others: the server's vectors,
and bits that no batch changes; the usual files and older onnxruntimes beside them."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from tokenizers import Tokenizer

from addnorm.export import onnx_folder, sources
from addnorm.export.certificate import served
from addnorm.export.certificate.answered import embed_by_server
from addnorm.export.wishes import Wishes
from addnorm.load.stream import prose
from addnorm.service.engine.model import Model
from benchmarks.findings import BUILD, MINILM, newest
from benchmarks.registry import ONNX_HOSTS
from tests.support import saved_folders
from tests.support.saved_folders import CASES, PAIRS

pytestmark = pytest.mark.onnx_hosts
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "own-program.md"
PROGRAMS = re.findall(r"```(python|js)\n(.+?)```", PAGE.read_text(), re.DOTALL)
HOSTS = ("fastembed", "sentence-transformers", "onnxruntime", "node")  # in the page's order
FILES = {"fp32": "model.onnx", "int8": "model_int8.onnx"}
OWN = BUILD.absolute() / "onnx-hosts" / "bin" / "python"
NODE = BUILD.absolute() / "js-onnx"
TEXTS, LONGEST_S = prose(512), 600
TAILS = {
    "python": """
import json, sys
import numpy as np
texts = json.load(open("texts.json"))
alone = [list(embed([text]))[0] for text in texts]
np.save(sys.argv[1], np.array([list(embed(texts)), alone], np.float32))
""",
    "js": """
import fs from "node:fs";
const texts = JSON.parse(fs.readFileSync("texts.json"));
const alone = [];
for (const text of texts) alone.push((await embed([text])).tolist()[0]);
fs.writeFileSync(process.argv[2], JSON.stringify([(await embed(texts)).tolist(), alone]));
""",
}
# the usual files: sentence-transformers' own export, and its int8 for this processor
USUAL = """
import sys
from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model
model = SentenceTransformer(sys.argv[1], backend="onnx", model_kwargs={"export": True})
model.save_pretrained("usual")
export_dynamic_quantized_onnx_model(model, "avx512_vnni", "usual")
"""
# folders of other families, as sentence-transformers' ONNX backend reads them
FAMILIES = (
    "bert mean",
    "roberta cls",
    "modernbert bf16",
    "deberta mean",
    "qwen3 last bf16",
    "bert pairs",
)
HOST = """
import json, sys
from sentence_transformers import CrossEncoder, SentenceTransformer
items = [tuple(item) if isinstance(item, list) else item for item in json.loads(sys.argv[1])]
kind = SentenceTransformer if isinstance(items[0], str) else CrossEncoder
model = kind("folder", backend="onnx", model_kwargs={"file_name": "model.onnx"})
ask = getattr(model, "encode" if kind is SentenceTransformer else "predict")
with open("found.json", "w") as file:
    json.dump([ask([item])[0].tolist() for item in items], file)
"""
Vectors = NDArray[np.float32]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the user's program runs: beside the folder `mine`."""
    root = tmp_path_factory.mktemp("hosts")
    source = sources.checkpoint(MINILM, Wishes(precisions=("fp32", "int8")))
    onnx_folder.export(source, root / "mine", has_embedding=True)
    (root / "texts.json").write_text(json.dumps(TEXTS[:64]))
    (root / "node_modules").symlink_to(NODE / "node_modules")
    return root


@pytest.fixture(scope="module")
def by_server() -> dict[str, Vectors]:
    bundle = newest("all-minilm-l6-v2")
    with served.path_of(Model(bundle)) as path:
        return {
            precision: embed_by_server(
                path.service, bundle.manifest, TEXTS, precision, normalize=True
            ).vectors.astype(np.float32)
            for precision in FILES
        }


def run(place: Path, *command: object, **variables: str) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", **variables}
    subprocess.run(
        list(map(str, command)), cwd=place, env=environment, timeout=LONGEST_S, check=True
    )


@pytest.mark.parametrize("precision", FILES)
@pytest.mark.parametrize("host", HOSTS)
def test_a_program_of_the_page_gives_the_servers_vectors(
    place: Path, by_server: dict[str, Vectors], host: str, precision: str
) -> None:
    language, program = PROGRAMS[HOSTS.index(host)]
    if precision == "fp32":
        program = program.replace("model_int8", "model").replace('"int8"', '"fp32"')
    file = place / (f"{host}-{precision}.mjs" if language == "js" else f"{host}-{precision}.py")
    file.write_text(program + TAILS[language])
    result_file = file.with_suffix(".json" if language == "js" else ".npy")
    run(place, "node" if language == "js" else OWN, file.name, result_file.name)
    vectors = (
        np.array(json.loads(result_file.read_text())) if language == "js" else np.load(result_file)
    )
    together, alone = vectors
    assert together.tobytes() == alone.tobytes()
    expected = by_server[precision][: len(alone)]
    cosines = (alone * expected).sum(1) / np.linalg.norm(alone, axis=1)
    assert cosines.min() > 0.999999
    if host == "onnxruntime":  # its pooling is ours
        assert alone.tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore")  # of the libraries, while they save and load
@pytest.mark.parametrize("name", FAMILIES)
def test_folders_of_other_families_answer_as_the_program_that_saved_them(
    tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    case.save(tmp_path / "saved")
    source = sources.checkpoint(tmp_path / "saved")
    onnx_folder.export(source, tmp_path / "folder")
    (tmp_path / "host.py").write_text(HOST)
    run(tmp_path, OWN, "host.py", json.dumps(PAIRS if "pairs" in name else saved_folders.TEXTS))
    vectors = np.array(json.loads((tmp_path / "found.json").read_text()))
    np.testing.assert_allclose(vectors, np.asarray(case.expected(tmp_path / "saved")), atol=1e-5)


@pytest.mark.parametrize("version", ONNX_HOSTS)
def test_bits_are_the_servers_from_onnxruntime_1_21_on(
    place: Path, by_server: dict[str, Vectors], version: str
) -> None:
    program = PROGRAMS[HOSTS.index("onnxruntime")][1] + TAILS["python"]
    (place / "version.py").write_text(program)
    folder = (BUILD / "onnxruntime" / version).resolve()
    run(place, sys.executable, "version.py", "version.npy", PYTHONPATH=str(folder))
    together, alone = np.load(place / "version.npy")
    is_since = tuple(map(int, version.split(".")[:2])) >= (1, 21)
    assert (together.tobytes() == alone.tobytes()) == is_since
    assert (alone.tobytes() == by_server["int8"][: len(alone)].tobytes()) == is_since


def test_the_usual_int8_changes_with_every_batch(
    place: Path, by_server: dict[str, Vectors]
) -> None:
    """Prints the figures of the page."""
    (place / "usual.py").write_text(USUAL)
    run(place, OWN, "usual.py", MINILM.resolve())
    files = sorted((place / "usual" / "onnx").glob("*.onnx"))
    files += [place / "mine" / "onnx" / name for name in FILES.values()]
    changed, seconds = {}, dict[str, list[list[float]]]()
    by_length = sorted(TEXTS, key=len)
    for _ in range(3):
        for file in files:
            own = [_seconds(file, texts) for texts in (TEXTS, by_length)]
            seconds.setdefault(file.parent.parent.name + " " + file.name, []).append(own)
    for name, rounds in seconds.items():
        drawn, sorted_ = len(TEXTS) / np.median(rounds, axis=0)
        print(f"{name}: {drawn:.0f} texts/s in the order drawn, {sorted_:.0f} sorted by length")
    for file in files:
        alone, together = _vectors(file, 1), _vectors(file, 32)
        changed[file.name] = int((alone != together).any(1).sum())
        cosines = (together * by_server["fp32"]).sum(1)
        print(f"{file}: {file.stat().st_size / 1e6:.1f} MB, {changed[file.name]} of {len(TEXTS)}"
              f" change, lowest cosine to fp32 {cosines.min():.7f}")  # fmt: skip
    usual = changed.pop("model_qint8_avx512_vnni.onnx")
    assert usual == len(TEXTS)
    assert not any(changed.values())


def _seconds(file: Path, texts: Sequence[str]) -> float:
    start = time.perf_counter()
    _vectors(file, 32, texts)
    return time.perf_counter() - start


def _vectors(file: Path, size: int, texts: Sequence[str] = TEXTS) -> Vectors:
    """Means of the hidden states, of length 1. size: of a batch."""
    tokenizer = Tokenizer.from_file(str(MINILM / "tokenizer.json"))
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    session, vectors = ort.InferenceSession(file), list[Vectors]()
    for start in range(0, len(texts), size):
        encoded = tokenizer.encode_batch(texts[start : start + size])
        ids, mask = (
            np.array([getattr(item, name) for item in encoded])
            for name in ("ids", "attention_mask")
        )
        cells = {"input_ids": ids, "attention_mask": mask, "token_type_ids": 0 * ids}
        taken = {item.name: cells[item.name] for item in session.get_inputs()}
        rows = session.run(None, taken)[0]
        sums = np.array([row[real != 0].sum(0) for row, real in zip(rows, mask, strict=True)])
        vectors.extend(sums / np.linalg.norm(sums, axis=1, keepdims=True))
    return np.array(vectors)
