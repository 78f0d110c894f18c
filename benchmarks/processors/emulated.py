"""Processors that qemu emulates, and the commands that run Python on them.

Emulation computes what the instructions say. It is no proof for a chip, and says nothing of speed.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from benchmarks.findings import BUILD, Options

NATIVE = "native"

ROOT = BUILD / "processors"  # what prepare.sh makes
ONNXRUNTIMES = BUILD / "onnxruntime"  # a folder for each version
NUM_CORES = 4
PRELOAD = "LD_PRELOAD"
AVX = "sse4_1 sse4_2 avx"
AVX2 = f"{AVX} f16c fma avx2"
NEON = (
    "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop"
    " asimddp ssbs"
)


class Python(NamedTuple):
    """The way Python runs on a processor. variables: of its processes, beside this one's."""

    processor: str
    command: list[str]
    variables: dict[str, str]

    @classmethod
    def here(cls) -> "Python":
        """On this machine's own, with this environment."""
        return cls(NATIVE, [sys.executable], {"PYTHONPATH": str(Path.cwd())})

    @classmethod
    def with_onnxruntime(cls, version: str) -> "Python":
        """On this machine's own, with another onnxruntime before this environment's."""
        folders = [str(Path.cwd()), str((ONNXRUNTIMES / version).absolute())]
        variables = {"PYTHONPATH": os.pathsep.join(folders)}
        return cls(f"onnxruntime {version}", [sys.executable], variables)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, **self.variables}


@dataclass(frozen=True)
class Processor:
    """cpu: qemu's name. flags: of /proc/cpuinfo, which would otherwise tell of this machine's."""

    name: str
    machine: str
    cpu: str
    flags: str
    part: str = ""  # of an ARM core
    is_promised: bool = True  # whether it has the bits of the others

    @property
    def is_arm(self) -> bool:
        return self.machine == "aarch64"

    def python(self, root: Path = ROOT) -> Python:
        """This environment's, or arm64's."""
        files, here = self._files(root.absolute()), str(Path.cwd())
        emulator = [f"qemu-{self.machine}", "-cpu", self.cpu, "-L", str(files)]
        emulator += ["-U", PRELOAD]  # it is for qemu, not for what qemu runs
        python = files / "usr/bin/python3.11" if self.is_arm else Path(sys.executable)
        folders = [here, str(root.absolute() / "site")] if self.is_arm else [here]
        variables = {"PYTHONPATH": os.pathsep.join(folders), "PYTHONDONTWRITEBYTECODE": "1"}
        if (fma := root.absolute() / "fma.so").exists():
            variables[PRELOAD] = str(fma)
        return Python(self.name, [*emulator, str(python)], variables)

    def _files(self, root: Path) -> Path:
        """A folder in which qemu looks first: /proc/cpuinfo, and arm64's libraries."""
        folder = root / self.name
        (folder / "proc").mkdir(parents=True, exist_ok=True)
        (folder / "proc/cpuinfo").write_text(self._cpuinfo())
        if self.is_arm:
            names = {path.name for path in (root / "root").iterdir()} - {"proc"}
            for name in sorted(names):
                _link(folder / name, Path("..", "root", name))
        return folder

    def _cpuinfo(self) -> str:
        """onnxruntime and the fingerprint read it."""
        fields = {"flags": self.flags, "model name": f"emulated {self.name}"}
        if self.is_arm:
            fields = {
                "BogoMIPS": "243.75", "Features": self.flags, "CPU implementer": "0x41",
                "CPU architecture": "8", "CPU variant": "0x3", "CPU part": self.part,
                "CPU revision": "1",
            }  # fmt: skip
        lines = "".join(f"{name}\t: {value}\n" for name, value in fields.items())
        return "\n".join(f"processor\t: {core}\n{lines}" for core in range(NUM_CORES)) + "\n"


def _link(link: Path, target: Path) -> None:
    """Relative, so that the folder may move. Takes the place of a link to somewhere else."""
    if not link.is_symlink() or link.readlink() != target:
        link.unlink(missing_ok=True)
        link.symlink_to(target)


PROCESSORS = {
    processor.name: processor
    for processor in (
        Processor("haswell", "x86_64", "Haswell", AVX2),
        Processor("neoverse-n1", "aarch64", "neoverse-n1", NEON, "0xd0c"),
        Processor("sandybridge", "x86_64", "SandyBridge", AVX, is_promised=False),
        Processor("sve", "aarch64", "max,sme=off", f"{NEON} sve sve2", "0xd40", is_promised=False),
        Processor("sme", "aarch64", "max", f"{NEON} sve sve2 sme", "0xd40", is_promised=False),
    )
}


def chosen(options: Options) -> list[Processor]:
    """Processors that `--only` names; where it names none, those whose bits are promised."""
    processors = PROCESSORS.values()
    matches = [
        processor for processor in processors if options.only and options.wants(processor.name)
    ]
    return matches or [processor for processor in processors if processor.is_promised]
