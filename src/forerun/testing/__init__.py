"""Tools for authors of methods: proofs of a drafter or a rule, and small models to test with."""

from forerun.testing.drafter_check import check_drafter
from forerun.testing.toy import ToyCache, ToyModel, TreeDrafter
from forerun.testing.verifier_check import Enumeration, check_verifier

__all__ = [
    "Enumeration",
    "ToyCache",
    "ToyModel",
    "TreeDrafter",
    "check_drafter",
    "check_verifier",
]
