"""The only place where logits become probabilities and probabilities become tokens."""

from forerun.adjustments import Prefix
from forerun.sampling.proposals import (
    Children,
    DraftVocabulary,
    couple,
    coupled_tensor,
    draw,
    draw_coupled,
    draw_plain,
    draw_siblings,
    draw_tensor,
    most_probable,
    top_shares,
)
from forerun.sampling.warping import (
    adjusted,
    check_token_ids,
    log_probs,
    warp,
    warp_unchecked,
)
