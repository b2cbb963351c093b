"""Contracts of models, caches, modules, drafters, verification rules and policies."""

from forerun.contracts.methods import (
    FILLER,
    Drafter,
    DrafterSetup,
    Policy,
    Rehearse,
    Verifier,
)
from forerun.contracts.models import (
    Ability,
    Cache,
    CausalLM,
    ChainRequest,
    CompressesCache,
    DraftsChains,
    Eviction,
    Evicts,
    ReadsViews,
    ReadThroughViews,
    SavesRows,
    compresses_cache,
    drafts_chains,
    reads_views,
)
from forerun.contracts.modules import (
    Attention,
    AttentionShape,
    BuildsModules,
    HeadChains,
    HeadParts,
    Layer,
    LayerShape,
    Module,
    Modules,
    builds_modules,
)
