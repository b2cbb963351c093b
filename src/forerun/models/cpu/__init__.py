"""Models on the compiled CPU kernels: bit for bit the same result however a token is computed."""

from forerun.models.cpu.cache import CpuCache, CpuCacheView
from forerun.models.cpu.chains import ChainRequest
from forerun.models.cpu.gated_mlp import GatedMlp
from forerun.models.cpu.model import CpuModel
from forerun.models.cpu.threads import num_threads, set_num_threads, shared_runtime

__all__ = [
    "ChainRequest",
    "CpuCache",
    "CpuCacheView",
    "CpuModel",
    "GatedMlp",
    "num_threads",
    "set_num_threads",
    "shared_runtime",
]
