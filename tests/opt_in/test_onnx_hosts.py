"""The programs of docs/guides/own-program.md in the environments of others: the server's vectors,
and bits that no batch changes; older onnxruntimes beside them."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from addnorm.export import onnx_folder, sources
from addnorm.export.certificate import served
from addnorm.export.certificate.answered import embed_by_server
from addnorm.export.wishes import Wishes
from addnorm.load.stream import prose
from addnorm.service.engine.model import Model
from benchmarks.findings import BUILD, MINILM, newest
from benchmarks.registry import ONNX_HOSTS

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
