"""What a run on a GPU needs of this machine."""

import ctypes
from collections.abc import Iterator

import onnxruntime
import torch

from addnorm.service.runtime.session import PROVIDERS


def missing() -> list[str]:
    """What is missing, in words; empty if everything is there."""
    return [*_missing()]


def _missing() -> Iterator[str]:
    if not num_gpus():
        yield "a GPU with its driver (`nvidia-smi` must list it)"
    if PROVIDERS["cuda"] not in onnxruntime.get_available_providers():
        yield f"onnxruntime with {PROVIDERS['cuda']} (onnxruntime-gpu in place of onnxruntime)"
    if not torch.cuda.is_available():
        yield "PyTorch with CUDA, to compare with"


def num_gpus() -> int:
    """The number of GPUs that the driver counts, whatever PyTorch was built for."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def devices() -> list[str]:
    """Names, as PyTorch gives them."""
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
