"""onnxruntime's sessions. One graph may run on one thread and on all cores, over one copy of its
weights."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import onnxruntime as ort

from addnorm.service.engine.device.placement import CPU, RECORD
from addnorm.service.engine.device.processor import processor
from addnorm.service.errors import StartupError

Providers = Sequence[tuple[str, dict[str, str]]]  # by name, with their options
# A thread that waits for its part of a run spins so long before it sleeps. Longer: idle cores do
# nothing useful for longer: with 200 us a run is 4 to 7 % shorter, and an answer over HTTP is not,
# as the event loop and the caller want the core. Shorter: each part costs a wake-up (5 tokens:
# 3.5 ms, 2.9 with it).
SPIN_US = 50


PACKED = "addnorm-"  # begins the names of the folders of packed weights


class Packing(NamedTuple):
    """The way in which two sessions share the packed weights of a graph.

    min_bytes: weights from this size on are shared. onnxruntime does not align smaller ones in the
    file, and its kernels crash on weights that are not aligned.
    """

    folder: Path | None = None  # of temporary files; None: as TMPDIR says
    min_bytes: int = 2**20
    free_bytes: Callable[[str], int] = lambda folder: shutil.disk_usage(folder).free


PACKING = Packing()


class Sessions(NamedTuple):
    """One graph, ready to run in two ways. Both give the same bits."""

    one_thread: ort.InferenceSession
    all_cores: ort.InferenceSession


def open_sessions(
    graph: Path,
    num_threads: int,
    fits_16_bits: bool = False,
    packing: Packing = PACKING,
) -> Sessions:
    """num_threads: of a run on all cores; fits_16_bits: of the manifest. StartupError if the graph
    cannot be loaded.

    onnxruntime packs the weights for its kernels. For two sessions to share them, a first session
    writes the packed weights to a temporary file, and the two that run map that file.
    """
    if num_threads == 1:
        session = open_session(graph, fits_16_bits)
        return Sessions(session, session)
    try:
        with TemporaryDirectory(prefix=PACKED, dir=packing.folder) as folder:
            packed_graph, free_bytes = Path(folder) / graph.name, packing.free_bytes(folder)
            try:
                _pack(graph, packed_graph, fits_16_bits, packing.min_bytes)
            except StartupError as error:
                if free_bytes < _most_bytes(graph):
                    raise OSError(f"{folder} has {free_bytes / 2**20:.0f} MiB free") from error
                raise
            one_thread, all_cores = (
                _load(packed_graph, _options(n, fits_16_bits, is_packed=True))
                for n in (1, num_threads)
            )
    except OSError as error:
        raise StartupError(
            f"cannot write the packed weights of {graph}: {error}, up to"
            f" {_most_bytes(graph) / 2**20:.0f} MiB are needed: set TMPDIR to another folder for"
            " temporary files, or ADDNORM_WORKER_THREADS=1, which needs none"
        ) from error
    return Sessions(one_thread, all_cores)


def open_session(
    graph: Path,
    fits_16_bits: bool = False,
    providers: Providers = (),
    new_session: Callable[..., ort.InferenceSession] = ort.InferenceSession,
    own_arena: bool = False,
) -> ort.InferenceSession:
    """On one thread: worker threads run in parallel, and more would compete with them for the
    cores. Raises as `open_sessions`. providers: that come before the CPU's. own_arena: it takes no
    memory that runs of other sessions have left."""
    return _load(graph, _options(1, fits_16_bits, own_arena=own_arena), providers, new_session)


def giving_back() -> ort.RunOptions:
    """Options of a run after which the arena returns all memory that no run holds to the system.
    The next runs take new pages: for large runs alone."""
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def int8_is_exact() -> bool:
    """True where onnxruntime sums any uint8 x int8 products in 32 bits on this processor.

    On x86 without VNNI its default kernels saturate 16-bit sums, so the exact, slower kernels must
    be asked for. On x86 with VNNI they must not be, because onnxruntime would then not use VNNI.
    Elsewhere the option has no effect.
    """
    return processor().has_vnni


@contextmanager
def runs_in_words(beginning: str) -> Iterator[None]:
    """Turns errors of onnxruntime in a run, such as out of memory, into a StartupError that begins
    with `beginning`."""
    try:
        yield
    except Exception as error:
        if not is_of_onnxruntime(error):
            raise
        raise StartupError(f"{beginning}: {_first_line(error)}") from error


def is_of_onnxruntime(error: Exception) -> bool:
    """The error is onnxruntime's. Its classes have no common base, and runs with I/O binding raise
    a RuntimeError."""
    return type(error) is RuntimeError or "onnxruntime" in type(error).__module__


def _pack(graph: Path, packed_graph: Path, fits_16_bits: bool, min_bytes: int) -> None:
    """Writes the optimized graph, and its weights as the kernels of this processor want them."""
    options = _options(1, fits_16_bits)
    options.optimized_model_filepath = str(packed_graph)
    for name, value in {
        "session.optimized_model_external_initializers_file_name": f"{packed_graph.name}.data",
        "session.optimized_model_external_initializers_min_size_in_bytes": f"{min_bytes}",
        "session.save_external_prepacked_constant_initializers": "1",
    }.items():
        options.add_session_config_entry(name, value)
    _load(graph, options)


def _most_bytes(graph: Path) -> int:
    """The most bytes that `_pack` may write: the weights as they are, and packed."""
    return 2 * file_bytes(graph)


def file_bytes(graph: Path) -> int:
    """Bytes of a graph's files, nearly all of them weights. 0 if there is no file."""
    files = graph, graph.with_name(f"{graph.name}.data")
    return sum(file.stat().st_size for file in files if file.exists())


@cache
def _make_arena() -> None:
    """Makes the arena that all sessions of the process take their memory from. An arena for each
    session would hold as much as its largest run needed."""
    ort.create_and_register_allocator(
        ort.OrtMemoryInfo(
            "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
        ),
        None,
    )


def _options(
    num_threads: int, fits_16_bits: bool, is_packed: bool = False, own_arena: bool = False
) -> ort.SessionOptions:
    _make_arena()
    options = ort.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    # onnxruntime would keep a pattern for each shape: it costs memory and saves no time
    options.enable_mem_pattern = False
    options.add_session_config_entry("session.use_env_allocators", "0" if own_arena else "1")
    # not from the arena, which keeps what a model that is unloaded gives back
    options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    options.add_session_config_entry(RECORD, "1")
    options.log_severity_level = 3  # errors only; warnings are about fallbacks, checked above
    options.add_session_config_entry("session.intra_op.spin_duration_us", str(SPIN_US))
    if is_packed:  # it is optimized already
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    # its products on ARM processors with SME round differently from those of every other processor
    options.add_session_config_entry("mlas.disable_kleidiai", "1")
    if not (fits_16_bits or int8_is_exact()):
        options.add_session_config_entry("session.x64quantprecision", "1")
    return options


def _load(
    graph: Path,
    options: ort.SessionOptions,
    providers: Providers = (),
    new_session: Callable[..., ort.InferenceSession] = ort.InferenceSession,
) -> ort.InferenceSession:
    try:
        return new_session(graph, options, providers=[*providers, CPU])
    except Exception as error:  # onnxruntime has no base class of its own
        raise StartupError(
            f"onnxruntime cannot load {graph}: {_first_line(error)}; export it again"
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
