"""Downloads a model of the Hugging Face hub: only the files that an export reads, at one commit."""

import glob
import json
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from addnorm.model.weight_files import BESIDE, FILES, FLAG_HEADS, INDEX
from addnorm.service.loading.addresses import HUB

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

TIMEOUT_S = 20.0  # of the first word of the hub
# folders of sentence-transformers' modules, such as 1_Pooling, and of a tokenizer's templates
MODULE = re.compile(r"[0-9]+_[^/]+|additional_chat_templates")
ROUTER = "router_config.json"  # which lists modules too
SETTINGS = (  # in the repository's root and in modules
    "config.json",
    "artifact.metadata",
    *BESIDE,
    *FLAG_HEADS,
    "modules.json",
    ROUTER,
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
    "*.jinja",
)


class DownloadError(Exception):
    """The model cannot be downloaded. The message says why."""


@dataclass(frozen=True)
class Download:
    """A model that was downloaded, and where it lies."""

    folder: Path
    repository: str  # ORG/NAME
    revision: str  # the commit's hash

    @property
    def name(self) -> str:
        return self.repository.rpartition("/")[2]

    @property
    def origin(self) -> dict[str, str]:
        """For a manifest's `source`."""
        return {
            "checkpoint": self.name,
            "repository": self.repository,
            "revision": self.revision,
        }


def address(name: str) -> tuple[str, str] | None:
    """Repository and revision of `ORG/NAME[@REVISION]`. None for a folder, and for other names."""
    match = HUB.fullmatch(name)
    return None if match is None or Path(name).exists() else (match[1], match[2] or "main")


def fetch(
    repository: str,
    revision: str,
    endpoint: str | None = None,
    cache: Path | None = None,
    with_code: bool = False,
    look: Callable[[Path, Sequence[str]], None] = lambda folder, listed: None,
) -> Download:
    """endpoint, cache: in place of what the environment sets for huggingface_hub. with_code: also
    the modules of Python in the root, which nothing here runs. look: is called with the folder
    and all files of the repository when the settings are there, and the weights are not.

    DownloadError if it fails, and what `look` raises.
    """
    # takes seconds to import, and few exports download
    from huggingface_hub import snapshot_download

    print(f"downloading {repository}@{revision}", flush=True)
    with _in_words(repository, revision, endpoint):
        commit_info = _info(repository, revision, endpoint)
        listed = [sibling.rfilename for sibling in commit_info.siblings or ()]
        code = [
            name for name in listed if with_code and fnmatchcase(name, "*.py") and "/" not in name
        ]
        download = partial(
            snapshot_download,
            repository,
            revision=commit_info.sha,
            endpoint=endpoint,
            cache_dir=cache,
        )
        folder = Path(
            download(allow_patterns=_patterns([*files_to_read(listed, (), False), *code]))
        )
        if modules := odd_modules(folder):
            download(allow_patterns=_patterns(files_to_read(listed, modules, False)))
    look(folder, listed)  # before what takes long
    with _in_words(repository, revision, endpoint):
        download(allow_patterns=_patterns([*files_to_read(listed, modules), *code]))
    return Download(folder, repository, str(commit_info.sha))


def odd_modules(folder: Path) -> list[str]:
    """Folders that modules.json names otherwise than sentence-transformers does, and those of a
    Router."""
    try:
        entries = json.loads((folder / "modules.json").read_bytes())
        paths = [entry["path"] for entry in entries]
        if (folder / ROUTER).exists():
            paths += [*json.loads((folder / ROUTER).read_bytes())["types"]]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return []  # what is wrong in it is said when it is read
    folders = [path for path in paths if isinstance(path, str) and path]
    return [path for path in folders if not MODULE.fullmatch(path)]


def files_of(folder: Path) -> list[str]:
    """The files of a checkpoint's folder that an export reads, as of a repository: whatever lies
    beside them is not looked at."""
    odd = [posixpath.normpath(path) for path in odd_modules(folder)]
    module_folders = [path.name for path in folder.iterdir() if MODULE.fullmatch(path.name)]
    subfolders = [name for name in {*odd, *module_folders} if (folder / name).is_dir()]
    listed = [
        path.relative_to(folder).as_posix()
        for place in [folder, *(folder / name for name in subfolders)]
        for path in place.iterdir()
        if path.is_file()
    ]
    return files_to_read({*listed}, odd)


def commit(repository: str, revision: str, endpoint: str | None = None) -> str:
    """The hash of the commit that the hub has at a revision. DownloadError if it says none."""
    with _in_words(repository, revision, endpoint):
        return str(_info(repository, revision, endpoint).sha)


def _info(repository: str, revision: str, endpoint: str | None) -> "ModelInfo":
    from huggingface_hub import HfApi

    return HfApi(endpoint).model_info(repository, revision=revision, timeout=TIMEOUT_S)


@contextmanager
def _in_words(repository: str, revision: str, endpoint: str | None) -> Iterator[None]:
    from huggingface_hub import HfApi, errors

    try:
        yield
    except Exception as error:  # of its HTTP client too, which differs between releases
        log_in = "run `hf auth login` or set HF_TOKEN"
        match error.__cause__ if isinstance(error, errors.LocalEntryNotFoundError) else error:
            case errors.GatedRepoError():
                reason = f"it is gated: ask for access on its page, then {log_in}"
            case errors.RepositoryNotFoundError():
                reason = (
                    f"neither the hub nor this machine has it; for a private repository, {log_in}"
                )
            case errors.RevisionNotFoundError():
                reason = f"it has no revision {revision!r}"
            case errors.OfflineModeIsEnabled():
                reason = "HF_HUB_OFFLINE is set"
            case errors.HfHubHTTPError() as answered:
                reason = f"it answers {answered.response.status_code}"
            case failure:
                first = str(failure or error).partition("\n")[0]
                reason = f"{type(failure or error).__name__}: {first}"
        hub = HfApi(endpoint).endpoint
        raise DownloadError(f"{repository} cannot be downloaded from {hub}: {reason}") from None


def _patterns(files: Iterable[str]) -> list[str]:
    return [glob.escape(file) for file in files]


def files_to_read(
    listed: Iterable[str], modules: Sequence[str] = (), with_weights: bool = True
) -> list[str]:
    """The files of a repository that are read. modules: folders that are, whatever their names."""
    folders: dict[str, list[str]] = {}
    for file in sorted(listed):
        folder, _, name = file.rpartition("/")
        folders.setdefault(folder, []).append(name)
    return [
        f"{folder}/{name}" if folder else name
        for folder, names in folders.items()
        if not folder or MODULE.fullmatch(folder) or folder in modules
        for name in [
            *(entry for entry in names if any(fnmatchcase(entry, pattern) for pattern in SETTINGS)),
            *(_weight_files(names) if with_weights else ()),
        ]
    ]


def _weight_files(names: list[str]) -> list[str]:
    """The first of those that are there; an index comes with its shards."""
    for file in FILES:
        if file in names and file.endswith(INDEX):
            stem, suffix = file.removesuffix(INDEX).split(".")
            return [file, *(n for n in names if fnmatchcase(n, f"{stem}-*-of-*.{suffix}"))]
        if file in names:
            return [file]
    return []
