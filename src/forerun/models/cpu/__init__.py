"""Models on the compiled CPU kernels: bit for bit the same result however a token is computed."""

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
