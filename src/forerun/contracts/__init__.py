"""What a model, its cache, its parts, a drafter, a rule and a policy must be able to do."""

from forerun.contracts.methods import (
    Drafter,
    DrafterSetup,
    Policy,
    Verifier,
)
from forerun.contracts.models import (
    Ability,
    Cache,
    CausalLM,
    ChainRequest,
    CompressesCache,
    DraftsChains,
    Evicts,
    ReadsViews,
    compresses_cache,
    drafts_chains,
    reads_views,
)
from forerun.contracts.modules import (
    Attention,
    AttentionShape,
    BuildsModules,
    Layer,
    LayerShape,
    Linear,
    Module,
    Modules,
    builds_modules,
)

__all__ = [
    "Ability",
    "Attention",
    "AttentionShape",
    "BuildsModules",
    "Cache",
    "CausalLM",
    "ChainRequest",
    "CompressesCache",
    "Drafter",
    "DrafterSetup",
    "DraftsChains",
    "Evicts",
    "Layer",
    "LayerShape",
    "Linear",
    "Module",
    "Modules",
    "Policy",
    "ReadsViews",
    "Verifier",
    "builds_modules",
    "compresses_cache",
    "drafts_chains",
    "reads_views",
]
