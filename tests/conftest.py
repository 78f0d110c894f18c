"""Fixtures: bundles exported once per run, and a real server that serves them all."""

import gc
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from filelock import FileLock
from opentelemetry.trace import Tracer

from addnorm.export import sources
from addnorm.export.exporting import export
from addnorm.export.sources import Source
from addnorm.export.wishes import Wishes
from addnorm.model.config import HeadConfig
from addnorm.model.presets import PRESETS
from addnorm.model.transformer import Transformer, randomize
from addnorm.service import locks
from addnorm.service.engine import bundle
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.registry import Models, Root
from addnorm.service.loading.addresses import where_kept
from addnorm.service.loading.kept_proofs import PROOFS
from addnorm.service.loading.loader import load_all
from addnorm.service.server.connection import Connection
from addnorm.service.server.process import Server
from addnorm.service.server.wiring import Service, build
from addnorm.service.settings import Settings
from tests.support import exports, multi_vector, opt_in, web
from tests.support.exports import shared_exports
from tests.support.gliner_folders import export_both
from tests.support.locks import CheckedLock, taken_wrongly
from tests.support.signing import Signer
from tests.support.task_models import DEFAULTS, export_task_models
from tests.support.texts import TEXT_MODEL, checkpoint
from tests.support.waiting import eventually

GOLDEN = Path(__file__).parent / "golden"
# What is asked again is computed again: a cache would compare an answer with itself.
OWN: dict[str, Any] = {"worker_threads": 2, "port": 0, "cache_bytes": 0}
# presets that have two layers in tests, and what else is smaller in them
DEEP: dict[str, dict[str, Any]] = {
    "gpt": {},
    "encoder": {"d_model": 128, "n_heads": 2, "d_ff": 512, "embedding_scale": 128**0.5},
    # its head is as wide as the vocabulary
    "minilm": {"max_positions": 128, "heads": {"logits": HeadConfig("every", 999)}},
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--bundles",
        type=Path,
        help="every preset, exported before: spares a minute while only service/ changes",
    )
    parser.addoption("--cache-requests", type=int, default=400, help="compared with the cache")
    parser.addoption("--cache-examples", type=int, default=12, help="of orders of events")
    parser.addoption("--queue-steps", type=int, default=2000, help="of events in the queue")
    parser.addoption("--fuzz-s", type=int, default=5, help="seconds that requests are made up for")


def pytest_configure(config: pytest.Config) -> None:
    opt_in.register(config)
    locks.use(CheckedLock)
    gc.disable()  # a quarter of the collection of tests


def pytest_collection_finish() -> None:
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    opt_in.deselect(config, items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    opt_in.allow(item)


@pytest.fixture(autouse=True)
def locks_in_order() -> Iterator[None]:
    """Whatever thread takes two locks in the wrong order, the test that it ran in fails."""
    yield
    assert not taken_wrongly()


@pytest.fixture(autouse=True, scope="module")
def what_is_loaded_stays() -> None:
    """So the collector, which each certificate calls, need not walk it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """The tests have a process for each core. For models so small, two threads that share a busy
    core are twenty times slower than one."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Servers and commands that tests start keep nothing in the user's own cache, and find nothing
    there."""
    os.environ["XDG_CACHE_HOME"] = str(root_of_this_run(tmp_path_factory) / "cache")


@pytest.fixture(scope="session", autouse=True)
def exports_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What PyTorch's exporter made for one test or process serves the others too."""
    exports.share(made_once(tmp_path_factory, "exports", Path.mkdir))
    with shared_exports():
        yield


def preset(name: str) -> Source:
    """A preset with two layers at most: the same kinds of blocks, in a third of the time."""
    source = sources.preset(name)
    if name not in DEEP:
        return source
    config = replace(PRESETS[name], n_layers=2, **DEEP[name])
    return replace(source, model=randomize(Transformer(config), seed=1).eval())


ExportPreset = Callable[[str], Path]


@pytest.fixture(scope="session")
def export_preset(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> ExportPreset:
    """Name -> the folder of its versions, of which there is one, exported and certified."""

    def export_preset(name: str) -> Path:
        def make(root: Path) -> None:
            with shared_exports(proved=name == "notebook"):
                export(preset(name), root, name)

        if given := pytestconfig.getoption("--bundles"):
            return given / name  # type: ignore[no-any-return]
        return made_once(tmp_path_factory, f"preset-{name}", make) / name

    return export_preset


@pytest.fixture(scope="session")
def preset_in_int8(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Bundle]:
    """Name -> its bundle in fp32 and int8, of which int8 is the default."""

    def preset_in_int8(name: str) -> Bundle:
        def make(root: Path) -> None:
            wishes = Wishes(precisions=("fp32", "int8"), default_precision="int8")
            export(replace(preset(name), wishes=wishes), root, name)

        return bundle.read(made_once(tmp_path_factory, f"int8-{name}", make) / name / "1")

    return preset_in_int8


@pytest.fixture(scope="session")
def notebook_in_fp16(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """The smallest bundle in fp32 and fp16."""

    def make(root: Path) -> None:
        wishes = Wishes(precisions=("fp32", "fp16"))
        export(sources.preset("notebook", wishes), root, "notebook")

    return bundle.read(made_once(tmp_path_factory, "fp16-notebook", make) / "notebook" / "1")


@pytest.fixture(scope="session")
def bundles(export_preset: ExportPreset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every preset. Two processes begin at different ends, so that each makes about half."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    names = [*PRESETS] if int(worker) % 2 else [*PRESETS][::-1]
    return linked(tmp_path_factory.mktemp("bundles"), [export_preset(name) for name in names])


def linked(root: Path, folders: Iterable[Path]) -> Path:
    """A folder of bundles that lie in others."""
    for folder in folders:
        (root / folder.name).symlink_to(folder.resolve())
    return root


def root_of_this_run(factory: pytest.TempPathFactory) -> Path:
    """The folder that the processes of one run share."""
    root = factory.getbasetemp()
    return root.parent if "PYTEST_XDIST_WORKER" in os.environ else root


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """A folder in it: the first process makes it, the others wait for it."""
    root = root_of_this_run(factory)
    with FileLock(root / f"{name}.lock"):
        if not (place := root / name).exists():
            make(partial := root / f"{name}.partial")
            partial.rename(place)
    return place


@pytest.fixture(scope="session")
def notebook(export_preset: ExportPreset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smallest bundle's folder, alone in its root. Copy it before breaking it."""
    return (
        linked(tmp_path_factory.mktemp("notebook"), [export_preset("notebook")]) / "notebook" / "1"
    )


@contextmanager
def serving(service: Service, connection: type[Connection] = Connection) -> Iterator[str]:
    """Serves on a free port; yields the base URL. connection: what it makes of each of its own."""
    server = Server(service, connection)
    thread = threading.Thread(target=server.run)
    thread.start()
    assert eventually(lambda: server.started)
    address = server.servers[0].sockets[0].getsockname()
    scheme = "https" if service.settings.tls_cert else "http"
    try:
        is_unix = isinstance(address, str)
        yield f"{scheme}://{'localhost' if is_unix else f'127.0.0.1:{address[1]}'}"
    finally:  # else a test that fails would never end
        server.should_exit = True
        thread.join()
        service.close()


@contextmanager
def client_of(service: Service, **options: Any) -> Iterator[httpx.Client]:
    """A client of a server that it starts."""
    with serving(service) as url, web.client(base_url=url, **options) as client:
        yield client


def inference_of(root: Root, tracer: Tracer | None = None, **changed: Any) -> Service:
    """What `addnorm serve` serves, with the proofs of earlier starts in this run."""
    settings = Settings(**{**OWN, **changed})
    models = load_all(root, settings, Path(where_kept()) / PROOFS)
    return build(models, settings, tracer)


def service_of(models: Models, **changed: Any) -> Service:
    """Serves models that are loaded, which other services may have too."""
    return build(models, Settings(**{**OWN, **changed}))


@pytest.fixture(scope="session")
def small(export_preset: ExportPreset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two smallest presets only, so that a server of one's own starts soon."""
    names = ("notebook", "gpt")
    return linked(tmp_path_factory.mktemp("small"), [export_preset(name) for name in names])


@pytest.fixture(scope="session")
def few(small: Path) -> Models:
    return load_all(small, Settings(worker_threads=2))


Serve = Callable[..., AbstractContextManager[str]]


@pytest.fixture(scope="session")
def serve(few: Models) -> Serve:
    """Serves the two smallest presets with the settings given; yields the base URL."""

    def serve(
        connection: type[Connection] = Connection, **changed: Any
    ) -> AbstractContextManager[str]:
        return serving(service_of(few, **changed), connection)

    return serve


@pytest.fixture(scope="session")
def url(bundles: Path) -> Iterator[str]:
    with serving(inference_of(bundles)) as url:
        yield url


@pytest.fixture(scope="session")
def client(url: str) -> Iterator[httpx.Client]:
    with web.client(base_url=url) as client:
        yield client


@pytest.fixture(scope="session")
def text_checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that `text_bundles` exports. Copy it before changing it."""
    return made_once(tmp_path_factory, "checkpoint", checkpoint)


@pytest.fixture(scope="session")
def text_bundles(
    notebook: Path, text_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """notebook, and under the name that the examples use a BERT of a few words that takes texts."""

    def make(root: Path) -> None:
        export(sources.checkpoint(text_checkpoint), root, TEXT_MODEL)

    texts = made_once(tmp_path_factory, "texts", make) / TEXT_MODEL
    return linked(tmp_path_factory.mktemp("texts"), [notebook.parent, texts])


@pytest.fixture(scope="session")
def text_models(text_bundles: Path) -> Models:
    return load_all(text_bundles, Settings(**OWN))


@pytest.fixture(scope="session")
def text_url(text_models: Models) -> Iterator[str]:
    with serving(service_of(text_models)) as url:
        yield url


@pytest.fixture(scope="session")
def text_client(text_url: str) -> Iterator[httpx.Client]:
    with web.client(base_url=text_url) as client:
        yield client


@pytest.fixture(scope="session")
def task_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model for each task: see tests/support/task_models.py."""

    def make(root: Path) -> None:
        export_task_models(root / "bundles", root / "checkpoints")

    return made_once(tmp_path_factory, "tasks", make) / "bundles"


@pytest.fixture(scope="session")
def multi_vector_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a vector for each token: see tests/support/multi_vector.py."""

    def make(root: Path) -> None:
        folder = multi_vector.checkpoint(root / "colbert")
        export(sources.checkpoint(folder), root / "bundles", "colbert")

    return made_once(tmp_path_factory, "multi-vector", make) / "bundles"


@pytest.fixture(scope="session")
def names_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of gliner's, and their bundles below `bundles`: tests/support/gliner_folders.py."""
    return made_once(tmp_path_factory, "names", export_both)


@pytest.fixture(scope="session")
def three_kinds_bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny bge-m3, with dense, sparse and token vectors."""

    def make(root: Path) -> None:
        folder = multi_vector.three_kinds(root / "bge-m3")
        export(sources.checkpoint(folder), root / "bundles", "bge-m3")

    return made_once(tmp_path_factory, "three-kinds", make) / "bundles"


@pytest.fixture(scope="session")
def tasks(task_bundles: Path) -> Models:
    return load_all(task_bundles, Settings(**OWN, default_models=DEFAULTS))


@pytest.fixture(scope="session")
def task_url(tasks: Models) -> Iterator[str]:
    with serving(service_of(tasks)) as url:
        yield url


@pytest.fixture(scope="session")
def task_client(task_url: str) -> Iterator[httpx.Client]:
    with web.client(base_url=task_url) as client:
        yield client


Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def ask(client: httpx.Client) -> Ask:
    """POST /v1/infer; the answer must be a success."""

    def ask(
        model: str, input_ids: list[list[int]], attention_mask: Any = None, **options: Any
    ) -> dict[str, Any]:
        body = {"model": model, "input_ids": input_ids, **options}
        if attention_mask is not None:
            body["attention_mask"] = attention_mask
        answer = client.post("/v1/infer", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()  # type: ignore[no-any-return]

    return ask


@pytest.fixture(scope="session")
def golden_notebook() -> dict[str, Any]:
    return json.loads((GOLDEN / "notebook.json").read_text())  # type: ignore[no-any-return]


@pytest.fixture
def alice(tmp_path: Path) -> Signer:
    """Who signs bundles and is trusted."""
    return Signer(tmp_path, "alice")


@pytest.fixture
def mallory(tmp_path: Path) -> Signer:
    """Who signs bundles and is not."""
    return Signer(tmp_path, "mallory")


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate, and its key."""
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
         "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", cert],
        check=True, capture_output=True,
    )  # fmt: skip
    return cert, key


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Copy it before changing it."""
    return self_signed(tmp_path_factory.mktemp("tls"))
