"""The only place where logits become probabilities and probabilities become tokens."""

from forerun.adjustments import Prefix
from forerun.sampling.draws import couple, draw, draw_coupled, draw_plain
from forerun.sampling.proposals import Children, draw_draft, draw_siblings, most_likely
from forerun.sampling.warping import check_token_ids, log_probs, prefixes_of, warp, warp_draft

__all__ = [
    "Children",
    "Prefix",
    "check_token_ids",
    "couple",
    "draw",
    "draw_coupled",
    "draw_draft",
    "draw_plain",
    "draw_siblings",
    "log_probs",
    "most_likely",
    "prefixes_of",
    "warp",
    "warp_draft",
]
