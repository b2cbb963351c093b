"""What is measured once a head is trained, on text that is held out, and written beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from forerun.heads.files import BY_RANK, CARD, OWN, HeadFiles, write_head
from forerun.training.card import card_of
from forerun.training.earlier import take_weights
from forerun.training.head_run import HeadRun

# Siblings whose acceptance is measured: trees rarely have more of them.
RANKS = 8


def finish(run: HeadRun) -> Mapping[str, Any]:
    """Measure the head that a run has kept, and write what came of it into its forerun.json and card.

    Args:
        run: that has ended; its module takes the weights that were kept, which are not the last ones
            where those were no better.

    Returns:
        The content of forerun.json.

    Raises:
        CheckpointError: where it cannot be written; what was there stays.
    """
    files = HeadFiles.open(run.out)
    take_weights(run.head, files)
    table = run.evaluate(RANKS)
    own = {**files.own, BY_RANK: table.by_rank}
    own["report"] = {**own["report"], "contexts": table.contexts}
    texts = {OWN: json.dumps(own, indent=2) + "\n", CARD: card_of(run.kind, own)}
    write_head(run.out, files.config, files.tensors, texts)
    return own
