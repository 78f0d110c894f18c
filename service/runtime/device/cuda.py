"""What onnxruntime's CUDA provider is told, and which GPU it runs on."""

from functools import cache
from pathlib import Path
from typing import NamedTuple

GPUS = Path("/proc/driver/nvidia/gpus")  # a folder each, as NVIDIA's driver on Linux makes them
# bits of onnxruntime's sdpa_kernel. Its third kernel needs no bit: it takes what these cannot
FLASH, MEMORY_EFFICIENT = 1, 2


class CudaOptions(NamedTuple):
    tf32: bool = False  # products of float32 with 10 bits of mantissa
    memory_bytes: int = 0  # of the arena of each graph; 0: no limit

    def for_provider(self) -> dict[str, str]:
        """Options by onnxruntime's names. Each worker thread has CUDA streams of its own in each
        session, so runs of several threads may overlap (docs/cuda.md says what was seen)."""
        options = {
            "use_tf32": str(int(self.tf32)),
            # the default doubles the arena up to steps of 1 GiB
            "arena_extend_strategy": "kSameAsRequested",
            # without cuDNN's, which takes fp16 where all sequences have one token, and builds a
            # plan for each number of them
            "sdpa_kernel": str(FLASH | MEMORY_EFFICIENT),
        }
        if self.memory_bytes:
            options["gpu_mem_limit"] = str(self.memory_bytes)
        return options

    def kind(self, gpus: Path = GPUS) -> str:
        """What decides the bits beside the graph. gpus: the driver's folder."""
        return f"{gpu_name(gpus)}, {'TF32' if self.tf32 else 'no TF32'}"


CUDA_DEFAULTS = CudaOptions()


@cache
def gpu_name(gpus: Path = GPUS) -> str:
    """The name of the first GPU, as its driver reports it."""
    for file in sorted(gpus.glob("*/information")):
        for line in file.read_text().splitlines():
            field, _, value = line.partition(":")
            if field.strip() == "Model":
                return value.strip()
    return "unknown GPU"
