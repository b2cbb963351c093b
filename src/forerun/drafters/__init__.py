"""Drafters: ways to propose tokens, one file and one line here per method.

Importing them loads neither torch nor NumPy: the command line derives flags and help from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from forerun.drafters.cascade import CascadeDrafter
from forerun.drafters.draft_model import DraftModelDrafter
from forerun.drafters.eagle3 import Eagle3Drafter
from forerun.drafters.layer_skip import LayerSkipDrafter
from forerun.drafters.medusa import MedusaDrafter
from forerun.drafters.ngram import NgramDrafter
from forerun.drafters.prediction import PredictionDrafter
from forerun.drafters.self_sparse import SelfSparseDrafter
from forerun.drafters.suffix import SuffixDrafter
from forerun.drafters.token_recycling import TokenRecyclingDrafter
from forerun.options import pick
from forerun.registry import Registry

DRAFTERS = Registry(
    "method",
    "forerun.drafters",
    {
        "cascade": CascadeDrafter,
        "draft_model": DraftModelDrafter,
        "eagle3": Eagle3Drafter,
        "layer_skip": LayerSkipDrafter,
        "medusa": MedusaDrafter,
        "ngram": NgramDrafter,
        "prediction": PredictionDrafter,
        "self_sparse": SelfSparseDrafter,
        "suffix": SuffixDrafter,
        "token_recycling": TokenRecyclingDrafter,
    },
    with_options=True,
)


def drafters_of(method: str, values: Mapping[str, Any]) -> list[Any]:
    """The classes that take part in a method: its own, and those of the methods that it drafts with.

    Args:
        method: name of the method.
        values: options by name; some of them may name those methods.

    Raises:
        UnknownNameError: for an unknown method.
        ConfigError: for an invalid option.
    """
    own = DRAFTERS.find(method)
    members = own.member_methods(pick(own.options, values))
    return [own, *map(DRAFTERS.find, members)]
