"""Versions come and go while the server runs: checked, switched between requests, freed."""

import asyncio
import json
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EACCES
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from addnorm.service.engine import bundle as bundles
from addnorm.service.engine.batch import Batch, Rows
from addnorm.service.engine.model import Model
from addnorm.service.engine.registry import Models
from addnorm.service.errors import BundleRefused, NotFound, StartupError
from addnorm.service.loading import folders
from addnorm.service.loading.repository import Repository
from addnorm.service.server.wiring import Service
from benchmarks import processes
from benchmarks.stress.copies import republish
from benchmarks.stress.scenarios.swaps import swap
from tests.conftest import ExportPreset, inference_of, serving
from tests.support import web
from tests.support.bundles import flip
from tests.support.metrics import samples
from tests.support.waiting import PATIENCE_S, eventually


@pytest.fixture
def root(notebook: Path, tmp_path: Path) -> Path:
    republish(bundles.read(notebook), tmp_path / "bundles", 1)
    return tmp_path / "bundles"


@pytest.fixture
def inference(root: Path) -> Iterator[Service]:
    inference = inference_of(root, token_budget=128)
    yield inference
    inference.close()


def publish(root: Path, version: int) -> Path:
    return republish(bundles.read(root / "notebook" / "1"), root, version)


def load(inference: Service, ref: str) -> None:
    inference.repository.load(ref)


def unload(inference: Service, ref: str) -> None:
    inference.repository.unload(ref)


def post(url: str, body: dict[str, Any]) -> httpx.Response:
    return web.post(f"{url}/v1/infer", json=body, timeout=PATIENCE_S)


def states(inference: Service) -> dict[int, str]:
    return {entry.version: entry.state for entry in inference.models.index()}


def test_a_new_version_answers_by_default_and_the_old_one_by_its_number(
    inference: Service, root: Path
) -> None:
    publish(root, 2)
    publish(root, 10)
    inference.models.find("notebook").target("fp32").token_budget = 77
    load(inference, "notebook")
    assert (
        inference.models.find("notebook").target("fp32").token_budget == 77
    )  # found when nothing else ran
    assert inference.models.find("notebook").bundle.ref == "notebook/10"
    assert inference.models.find("notebook/1").bundle.ref == "notebook/1"
    unload(inference, "notebook/10")
    assert inference.models.find("notebook").bundle.ref == "notebook/2"
    assert states(inference) == {1: "READY", 2: "READY", 10: "UNAVAILABLE"}
    load(inference, "notebook/10")
    assert states(inference)[10] == "READY"


def test_folders_that_are_named_one_by_one_are_followed_too(root: Path) -> None:
    """`addnorm serve NAME` names what is kept. What is loaded is served when they have gone."""
    inference = inference_of((root / "notebook",))
    publish(root, 2)
    load(inference, "notebook")
    assert states(inference) == {1: "READY", 2: "READY"}
    shutil.rmtree(root)
    for _ in range(2):
        inference.repository.rescan()
    assert states(inference) == {1: "READY", 2: "READY"}
    with pytest.raises(StartupError, match=rf"no bundle in {root}/notebook: the exported bundles"):
        folders.find((root / "notebook",))
    inference.close()


def test_a_broken_version_changes_nothing_and_the_index_says_why(
    inference: Service, root: Path
) -> None:
    flip(publish(root, 2) / "model.onnx")
    with pytest.raises(BundleRefused, match=r"model\.onnx does not match its sha256"):
        load(inference, "notebook")
    assert inference.models.find("notebook").bundle.ref == "notebook/1"
    assert states(inference) == {1: "READY", 2: "UNAVAILABLE"}
    assert "does not match its sha256" in inference.models.index()[1].reason


def test_a_version_that_an_alias_cannot_mean_is_not_loaded(
    task_bundles: Path, tmp_path: Path
) -> None:
    """Else requests that were answered before would be refused, and the next start too."""
    bundle = bundles.read(task_bundles / "embedder" / "1")
    republish(bundle, tmp_path, 1)
    service = inference_of(tmp_path, aliases={"asker": "embedder?prompt=query"}, admin=True)
    republish(bundle, tmp_path, 2, changed={"prompts": {}})
    with pytest.raises(BundleRefused, match="asker has prompt=query, embedder/2 has none"):
        load(service, "embedder")
    with serving(service) as url:
        pinned = f"{url}/v2/repository/models/embedder"
        assert web.post(f"{pinned}/1/pin").status_code == 200
        load(service, "embedder/2")  # which the alias does not mean
        for version in ("2", "latest"):
            answer = web.post(f"{pinned}/{version}/pin")
            assert answer.status_code == 400
            assert f"version is {version}: ADDNORM_ALIASES: asker has prompt" in answer.text
        assert service.models.meant("asker").model.bundle.ref == "embedder/1"


def test_a_load_that_fails_in_part_says_what_is_served_now(inference: Service, root: Path) -> None:
    publish(root, 2)
    flip(publish(root, 3) / "model.onnx")
    with pytest.raises(
        BundleRefused, match=r"does not match its sha256.*; serving now: notebook/1, notebook/2$"
    ):
        load(inference, "notebook")
    with pytest.raises(BundleRefused, match=r"; serving now: notebook/1, notebook/2$"):
        load(inference, "notebook/3")
    unload(inference, "notebook")
    with pytest.raises(BundleRefused, match=r"; no version of notebook is served$"):
        load(inference, "notebook/3")


def test_loads_and_unloads_are_logged(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "addnorm")
    inference = inference_of(root, token_budget=128)
    publish(root, 2)
    caplog.clear()
    load(inference, "notebook")
    unload(inference, "notebook/1")
    shutil.rmtree(root / "notebook" / "2")
    for _ in range(2):
        inference.repository.rescan()
    inference.close()
    messages = [record.message.split(", ready")[0] for record in caplog.records]
    assert messages == [
        "serving notebook/1 as before: it has not changed",
        "serving notebook/2",
        "unloaded notebook/1: by request",
        f"unloaded notebook/2: {root / 'notebook' / '2'} is gone",
    ]


def test_a_version_tampered_with_on_disk_runs_on_and_is_not_read_again(
    inference: Service, root: Path
) -> None:
    running = inference.models.find("notebook")
    flip(root / "notebook" / "1" / "model.onnx")
    with pytest.raises(BundleRefused, match="does not match its sha256"):
        load(inference, "notebook/1")
    assert inference.models.find("notebook") is running
    asyncio.run(inference.readiness.check())
    (entry,) = inference.models.index()
    assert entry.state == "READY"
    assert "does not match its sha256" in entry.reason


class Noting(Models):
    """Notes what is served when a model is added."""

    def __init__(self, *arguments: Any) -> None:
        self.served_when_added = list[Model | None]()
        super().__init__(*arguments)

    def add(self, model: Model) -> None:
        self.served_when_added.append(self.get(model.bundle.ref))
        super().add(model)


def test_a_changed_version_is_served_at_every_moment(inference: Service, root: Path) -> None:
    before = inference.models.find("notebook/1")
    models = Noting([before], root)
    repository = Repository(models, inference.settings, free_s=0.0)  # `before` is never freed
    running = before.bundle.path
    changed = republish(before.bundle, root.parent, 1, added={"notes.txt": b"changed"})
    shutil.rmtree(running)
    changed.rename(running)

    repository.load("notebook/1")
    assert models.served_when_added == [None, before]
    assert models.find("notebook/1") is not before


def test_what_is_not_there_is_not_found(inference: Service) -> None:
    for ref in ("other", "notebook/7", "../notebook", "", "notebook/"):
        with pytest.raises(NotFound):
            load(inference, ref)
        with pytest.raises(NotFound):
            unload(inference, ref)


def test_without_models_the_server_is_not_ready_and_says_so(inference: Service) -> None:
    unload(inference, "notebook")
    with serving(inference) as url:
        assert "no model is served" in web.get(f"{url}/readyz").text
        assert web.get(f"{url}/v1/models").json()["data"] == []
        for body in ({"input_ids": [[1]]}, {"input_ids": [[1]], "model": "notebook"}):
            assert web.post(f"{url}/v1/infer", json=body).status_code == 404


def test_a_request_under_way_ends_on_the_version_it_began_with_which_is_then_freed(
    inference: Service, root: Path
) -> None:
    repository = Repository(inference.models, inference.settings, free_s=PATIENCE_S)
    entered, go = threading.Event(), threading.Event()
    line = inference.models.find("notebook").target("fp32")
    engine = weakref.ref(inference.models.find("notebook").engine("fp32"))

    def slow(batch: Batch, run: Any = line.run) -> Rows:
        entered.set()
        go.wait(PATIENCE_S)
        return run(batch)  # type: ignore[no-any-return]

    line.run = line.run_on_all_cores = slow
    del line, slow  # which hold the engine
    publish(root, 2)
    with serving(inference) as url:
        body, answers = {"input_ids": [[1, 3, 4]]}, list[httpx.Response]()
        old = threading.Thread(target=lambda: answers.append(post(url, body)))
        old.start()
        assert entered.wait(PATIENCE_S)
        repository.load("notebook")
        leaving = threading.Thread(target=repository.unload, args=("notebook/1",))
        leaving.start()
        assert eventually(lambda: states(inference)[1] == "UNAVAILABLE")
        assert post(url, body).json()["version"] == "2"
        assert leaving.is_alive()  # as long as somebody waits for the old version
        go.set()
        old.join()
        leaving.join()
        assert engine() is None
        got, new = answers[0].json(), post(url, body).json()
        assert (got.pop("version"), new.pop("version")) == ("1", "2")
        assert got == new
        info = [
            dict(labels)
            for name, labels in samples(web.get(f"{url}/metrics").text)
            if name == "addnorm_model_info"
        ]
        assert [labels["version"] for labels in info] == ["2"]


def test_the_folder_is_followed_when_asked_to(root: Path) -> None:
    inference = inference_of(root, token_budget=128, watch_s=0.05)
    publish(root, 2)
    assert eventually(lambda: states(inference) == {1: "READY", 2: "READY"})
    shutil.rmtree(root / "notebook" / "1")
    assert eventually(lambda: states(inference) == {2: "READY"})
    unload(inference, "notebook/2")
    time.sleep(0.2)
    assert states(inference) == {2: "UNAVAILABLE"}  # what was unloaded by hand stays so
    root.rename(root.with_name("away"))
    time.sleep(0.2)
    root.with_name("away").rename(root)
    republish(bundles.read(root / "notebook" / "2"), root, 3)
    assert eventually(lambda: states(inference) == {2: "UNAVAILABLE", 3: "READY"})
    inference.close()


def test_a_volume_that_goes_away_while_it_is_listed_takes_no_model_along(
    inference: Service, root: Path
) -> None:
    def of_a_volume_that_has_gone(folder: Path) -> folders.Listing:
        root.rename(root.with_name("away"))
        return folders.listing(folder)

    turns = iter([folders.listing, of_a_volume_that_has_gone])
    repository = Repository(
        inference.models, inference.settings, listing=lambda root: next(turns)(root)
    )
    repository.rescan()
    assert states(inference) == {1: "READY"}


@contextmanager
def unreadable(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whoever runs the tests: root reads whatever the permissions."""
    listed = Path.iterdir

    def iterdir(path: Path) -> Iterator[Path]:
        if path == folder:
            raise PermissionError(EACCES, "Permission denied", str(path))
        return listed(path)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "iterdir", iterdir)
        yield


@pytest.mark.parametrize("which", ["private", "private/1"])
def test_a_folder_that_cannot_be_read_is_named_once_and_stops_no_swap(
    root: Path, which: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    inference = inference_of(root, token_budget=128, watch_s=0.05)
    (root / "private" / "1").mkdir(parents=True)
    with unreadable(root / which, monkeypatch):
        publish(root, 2)
        assert eventually(lambda: states(inference) == {1: "READY", 2: "READY"})
        shutil.rmtree(root / "notebook" / "2")
        assert eventually(lambda: states(inference) == {1: "READY"})
        with pytest.raises(BundleRefused, match="cannot be read by user"):
            load(inference, "private")
        load(inference, "notebook")
    inference.close()
    (line,) = (record.message for record in caplog.records if "cannot be read" in record.message)
    assert line.startswith(
        f"{root / which} cannot be read by user {os.geteuid()}: Permission denied"
    )
    assert line.endswith(f"chmod -R a+rX {root / which}`")
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("which", ["", "notebook", "notebook/1"])
def test_what_cannot_be_read_for_a_while_is_served_on(
    root: Path, which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inference = inference_of(root, token_budget=128, watch_s=0.02)
    running = inference.models.find("notebook")
    with unreadable(root / which, monkeypatch):
        time.sleep(0.6)
        assert states(inference) == {1: "READY"}
    publish(root, 2)
    assert eventually(lambda: states(inference) == {1: "READY", 2: "READY"})
    assert inference.models.find("notebook/1") is running
    inference.close()


# what is imported late must be there before: that user may not read this Python either
AS_NOBODY = """
import encodings.idna, importlib.readers, os, sys
from addnorm.service.command import serve
if os.geteuid() == 0:
    os.setegid(65534)
    os.seteuid(65534)
for root in sys.argv[1:]:
    try:
        serve(["--bundles", root])
    except SystemExit as ended:
        print(ended)
"""


@contextmanager
def started_as_nobody(*roots: Path) -> Iterator[subprocess.Popen[str]]:
    """Servers, one after another, by a user that owns none of what they serve. What each ends with
    is printed."""
    command = [sys.executable, "-c", AS_NOBODY, *map(str, roots)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(
        command, env={**os.environ, "ADDNORM_PORT": "0"}, text=True, **streams
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def shared(root: Path) -> Iterator[Path]:
    """A copy that others may enter."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        shutil.copytree(root / "notebook", Path(folder) / "notebook")
        yield Path(folder)


def test_the_start_names_a_folder_that_it_cannot_read_and_goes_on(shared: Path) -> None:
    shutil.copytree(shared / "notebook", shared / "private")
    (shared / "private").chmod(0)
    with started_as_nobody(shared) as process:
        seen = []
        for line in process.stderr or ():
            seen.append(json.loads(line)["message"])
            if "serving notebook/1" in line:
                break
        (named,) = (message for message in seen if "cannot be read" in message)
        assert named.startswith(f"{shared / 'private'} cannot be read by user")
        assert "serving notebook/1" in seen[-1]


def test_a_start_without_a_bundle_that_it_can_read_ends_in_one_line(shared: Path) -> None:
    files = ("notebook/1/model.onnx", "notebook/1/manifest.json")
    unreadable = [
        shared / str(number) / which
        for number, which in enumerate(("", "notebook", "notebook/1", *files))
    ]
    roots = [shared / str(number) for number in range(len(unreadable))]
    for root, path in zip(roots, unreadable, strict=True):
        shutil.copytree(shared / "notebook", root / "notebook")
        path.chmod(0)
    with started_as_nobody(*roots) as process:
        messages, errors = process.communicate(timeout=PATIENCE_S)
    assert not errors
    for path, line in zip(unreadable, messages.splitlines(), strict=True):
        assert f"{path} cannot be read by user" in line
        assert "chmod -R a+rX" in line


def test_a_version_copied_file_by_file_is_loaded_once_it_is_whole(
    inference: Service, root: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = republish(bundles.read(root / "notebook" / "1"), tmp_path / "elsewhere", 2)
    (target := root / "notebook" / "2").mkdir()
    for file in sorted(whole.iterdir()):  # the certificate comes first
        shutil.copy(file, target)
        inference.repository.rescan()  # between two files, as whoever watches may do
        assert states(inference) == {1: "READY"}
    inference.repository.rescan()
    assert states(inference) == {1: "READY", 2: "READY"}
    assert "missing" not in caplog.text


def resident_mib(server: processes.Server) -> float:
    """Resident memory of a server whose process no other test has used."""
    pages = int(Path(f"/proc/{server.pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def test_unloading_gives_the_memory_back(export_preset: ExportPreset, tmp_path: Path) -> None:
    (tmp_path / "minilm").symlink_to(folder := export_preset("minilm"))
    # loading lets go of weights: these ids are near all rows of the table of tokens
    ids = [[*range(start, start + 750, 25)] for start in range(0, 30_000, 750)]
    body = {"input_ids": ids, "outputs": ["logits"], "logits": {"top_k": 3}}
    with processes.folder(tmp_path, ADDNORM_ADMIN="true", ADDNORM_TOKEN_BUDGET="128") as server:
        url = f"http://{server.host}:{server.port}"
        assert post(url, body).status_code == 200
        loaded = resident_mib(server)
        path = f"{url}/v2/repository/models/minilm/unload"
        assert web.post(path, timeout=PATIENCE_S).status_code == 200
        freed = loaded - resident_mib(server)
    size = sum(file.stat().st_size for file in (folder / "1").iterdir()) / 2**20
    assert freed > 0.9 * size


def test_versions_are_swapped_under_load_without_a_mistake(notebook: Path) -> None:
    callers, _ = swap(bundles.read(notebook), num_swaps=5, num_callers=4, settle_s=0.5)
    assert callers.mistakes == []
    assert callers.outcomes.keys() == {f"version {version}" for version in range(1, 7)}
