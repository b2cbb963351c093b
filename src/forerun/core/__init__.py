"""The core types: trees, drafts, plans, verdicts, requests, batches, statistics."""

from forerun.core.batch import BLOCK_SIZE, Batch, ForwardOutput, HiddenStates, LogitsFor, View
from forerun.core.draft import (
    CONTEXT_FULL,
    NO_DRAFT,
    NO_HINTS,
    NO_PLAN,
    Draft,
    Drawing,
    Exactness,
    FinishReason,
    Hints,
    Origin,
    PlainReason,
    Plan,
    Request,
    SparseProbs,
    Verdict,
)
from forerun.core.stats import RoundTimes, Stats
from forerun.core.tree import MOST_NODES, NO_TREE, Tree
