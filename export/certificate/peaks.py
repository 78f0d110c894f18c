"""The memory that one sequence holds while an authors' graph runs: their attention keeps scores of
all pairs of tokens, so it grows with the square of the length.

The system's count of resident pages is read before and at the peak. Nothing else may run meanwhile.
"""

import gc
from collections.abc import Mapping
from pathlib import Path

from addnorm.export.wishes import UsageError
from addnorm.service.cores import usable_memory
from addnorm.service.engine import selfcheck
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.device import memory
from addnorm.service.engine.engine import TYPES, run_session
from addnorm.service.engine.own_engine import ANSWER, IDS, VECTORS
from addnorm.service.engine.session import giving_back, open_session

SHORTEST = 256  # tokens of the shortest sequence that is measured, if the longest has more
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc_pid_clear_refs(5)


def measure(bundle: Bundle) -> dict[int, int]:
    """Tokens of a sequence -> bytes at the peak of its run alone: of the longest, of half as many,
    and so on. Empty where the system counts no peak, as macOS. UsageError before a run that would
    need more memory than there is."""
    limits = bundle.manifest.limits
    lengths = [limits.max_positions]
    while lengths[0] >= 2 * SHORTEST:
        lengths.insert(0, lengths[0] // 2)
    session, options = open_session(bundle.graph("fp32"), own_arena=True), giving_back()

    def run(length: int) -> None:
        sequence = selfcheck.sequences(limits, [length])
        inputs = {VECTORS if limits.input_width else IDS: sequence.tokens[None]}
        if sequence.types is not None:
            inputs[TYPES] = sequence.types[None]
        run_session(session, [ANSWER], inputs, options)

    run(1)  # takes what all runs share
    gc.collect()
    memory.give_back()
    try:
        before, _ = _resident("VmRSS"), RESET.write_text(RESET_PEAK)
    except (OSError, StopIteration):  # not Linux, or a sandbox
        return {}
    peaks = dict[int, int]()
    for length in lengths:
        refuse_too_large(length, peaks, usable_memory())
        run(length)
        peaks[length] = max(0, _resident("VmHWM") - before)
    return peaks


def refuse_too_large(length: int, peaks: Mapping[int, int], num_bytes: int) -> None:
    """UsageError if a sequence of so many tokens needs more bytes than there are."""
    if (peak := _predict(length, peaks)) > num_bytes:
        raise UsageError(
            f"a sequence of {length:,} tokens takes about {_as_size(peak)} while it runs, and this"
            f" machine has {_as_size(num_bytes)}: --max-length {max(peaks)} takes"
            f" {_as_size(max(peaks.values()))}; for a module, set config={{'max_positions': N}}"
        )


def in_words(peaks: Mapping[int, int], longest: int, uncut: int = 0) -> str:
    """The memory of the longest text that is served, and of the longest that its authors take.
    uncut: tokens of the latter."""
    if not peaks:
        return (
            "the memory of long texts cannot be measured on this system, so servers will not"
            " limit it"
        )
    words = f"a sequence of {longest:,} tokens takes {_as_size(peaks[longest])} of memory"
    if uncut <= longest:
        return words
    size = _as_size(_predict(uncut, peaks))
    return (
        f"{words}; its authors allow {uncut:,} tokens, which take about {size}: to allow them,"
        f" use --max-length {uncut}"
    )


def _predict(length: int, peaks: Mapping[int, int]) -> int:
    """Bytes at a length beyond those that were measured: scores grow with its square."""
    longest = max(peaks, default=length)
    return round(peaks.get(longest, 0) * (length / longest) ** 2)


def _as_size(num_bytes: int) -> str:
    gib = num_bytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{num_bytes / 2**20:.0f} MiB"


def _resident(kind: str) -> int:
    """Bytes of memory of this process: `VmRSS` now, `VmHWM` at the peak since the last reset."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024
