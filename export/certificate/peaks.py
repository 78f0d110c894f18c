"""The memory that one sequence holds while an authors' graph runs: their attention keeps scores of all
pairs of tokens, so it grows with the square of the length.

The system's count of resident pages is read before and at the peak. Nothing else may run meanwhile.
"""

import gc
from pathlib import Path

from addnorm.export.sources import UsageError
from addnorm.service.cores import usable_memory
from addnorm.service.engine import selfcheck
from addnorm.service.engine.bundle import Bundle
from addnorm.service.engine.device import memory
from addnorm.service.engine.engine import TYPES, run_session
from addnorm.service.engine.own_engine import ANSWER, IDS, VECTORS
from addnorm.service.engine.session import open_session

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
    session = open_session(bundle.graph("fp32"), own_arena=True)

    def run(length: int) -> None:
        sequence = selfcheck.sequences(limits, [length])
        inputs = {VECTORS if limits.input_width else IDS: sequence.tokens[None]}
        if sequence.types is not None:
            inputs[TYPES] = sequence.types[None]
        run_session(session, [ANSWER], inputs)

    run(1)  # takes what all runs share
    gc.collect()
    memory.give_back()
    try:
        RESET.write_text(RESET_PEAK)
        before, _ = _resident("VmRSS"), _resident("VmHWM")
    except (OSError, StopIteration):  # not Linux, or a sandbox
        return {}
    peaks = dict[int, int]()
    for length in lengths:
        refuse_too_large(length, peaks, usable_memory())
        run(length)
        peaks[length] = max(0, _resident("VmHWM") - before)
    return peaks


def predicted(length: int, peaks: dict[int, int]) -> int:
    """Bytes at a length beyond those that were measured: scores grow with its square."""
    if not peaks:
        return 0
    longest = max(peaks)
    return round(peaks[longest] * (length / longest) ** 2)


def refuse_too_large(length: int, peaks: dict[int, int], num_bytes: int) -> None:
    """UsageError if a sequence of so many tokens needs more bytes than there are."""
    if (peak := predicted(length, peaks)) > num_bytes:
        raise UsageError(
            f"a text of {length:,} tokens takes about {in_words(peak)} while it runs, and this"
            f" machine has {in_words(num_bytes)}: --max-length {max(peaks)} takes"
            f" {in_words(max(peaks.values()))}; of a module, config={{'max_positions': N}}"
        )


def in_words(num_bytes: int) -> str:
    """In GiB or MiB."""
    gib = num_bytes / 2**30
    return f"{gib:.1f} GiB" if gib >= 1 else f"{num_bytes / 2**20:.0f} MiB"


def _resident(kind: str) -> int:
    """Bytes of memory of this process: `VmRSS` now, `VmHWM` at the peak since the last reset."""
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024
