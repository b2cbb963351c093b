"""The core types: trees, drafts, plans, verdicts, requests, batches, statistics."""

from forerun.core.batch import BLOCK_SIZE, Batch, ForwardOutput, HiddenStates, LogitsFor, View
from forerun.core.draft import (
    CONTEXT_FULL,
    NO_DRAFT,
    NO_PLAN,
    Draft,
    Drawing,
    Exactness,
    Origin,
    PlainReason,
    Plan,
    SparseProbs,
    Verdict,
)
from forerun.core.request import NO_HINTS, FinishReason, Hints, Request
from forerun.core.stats import RoundTimes, Stats
from forerun.core.tree import MOST_NODES, NO_TREE, Tree
