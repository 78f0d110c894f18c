"""The processor of this machine: its name, and the features that kernels are chosen by."""

import platform
from functools import cache
from pathlib import Path
from typing import NamedTuple

# What the kernels of onnxruntime and numpy choose by, in the words of /proc/cpuinfo
INSTRUCTION_SETS = (
    *("sse4_1", "sse4_2", "avx", "f16c", "fma", "avx2", "avx_vnni", "avx_vnni_int8"),
    *("avx_ne_convert", "avx512f", "avx512cd", "avx512bw", "avx512dq", "avx512vl", "avx512ifma"),
    *("avx512vbmi", "avx512_vbmi2", "avx512_bitalg", "avx512_vpopcntdq", "avx512_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimdhp", "asimddp", "fphp", "fcma", "i8mm", "bf16", "sve", "sve2", "svei8mm"),
    *("sme", "sme2"),
)
ARM_CORE = ("CPU implementer", "CPU part")  # on ARM some kernels are chosen by the core


class Processor(NamedTuple):
    name: str
    core: tuple[str, ...]  # ARM only
    instruction_sets: tuple[str, ...]  # those of INSTRUCTION_SETS that it has, sorted

    @classmethod
    def parse(cls, cpuinfo: str) -> "Processor":
        """The first core in /proc/cpuinfo."""
        fields: dict[str, str] = {}
        for line in cpuinfo.splitlines():
            field, _, value = line.partition(":")
            fields.setdefault(field.strip(), value.strip())
        flags = fields.get("flags") or fields.get("Features") or ""
        return cls(
            fields.get("model name") or platform.processor() or platform.machine(),
            tuple(fields[field] for field in ARM_CORE if field in fields),
            tuple(sorted(set(INSTRUCTION_SETS) & set(flags.split()))),
        )

    @property
    def kind(self) -> str:
        """The processor class: system, architecture, core and instruction sets. Not the name:
        processors of one class run the same kernels."""
        system = platform.system(), platform.machine()
        # systems other than Linux do not tell instruction sets
        return " ".join([*system, *self.core, *(self.instruction_sets or [self.name])])

    @property
    def has_vnni(self) -> bool:
        return not {"avx_vnni", "avx512_vnni"}.isdisjoint(self.instruction_sets)


@cache
def processor() -> Processor:
    """This machine's processor."""
    try:
        return Processor.parse(Path("/proc/cpuinfo").read_text())
    except OSError:  # not Linux
        return Processor.parse("")
