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
    DraftsChains,
    drafts_chains,
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
    "Drafter",
    "DrafterSetup",
    "DraftsChains",
    "Layer",
    "LayerShape",
    "Linear",
    "Module",
    "Modules",
    "Policy",
    "Verifier",
    "builds_modules",
    "drafts_chains",
]
