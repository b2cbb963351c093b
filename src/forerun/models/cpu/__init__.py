"""Models on the compiled CPU kernels: a token's result is the same, bit for bit, however it is computed."""

from forerun.models.cpu.cache import CpuCache
from forerun.models.cpu.model import CpuModel, KernelChoice
from forerun.models.cpu.modules import CpuModules
from forerun.models.cpu.threads import num_threads, set_num_threads, shared_pool

__all__ = [
    "CpuCache",
    "CpuModel",
    "CpuModules",
    "KernelChoice",
    "num_threads",
    "set_num_threads",
    "shared_pool",
]
