"""Small models and drafters to test with: public, for authors of methods."""

from forerun.testing.drafters import TreeDrafter
from forerun.testing.toy import ToyCache, ToyModel

__all__ = ["ToyCache", "ToyModel", "TreeDrafter"]
