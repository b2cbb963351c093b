"""The only place where logits become probabilities and probabilities become tokens."""

from forerun.adjustments import Prefix
from forerun.sampling.draws import (
    couple,
    coupled_tensor,
    draw,
    draw_coupled,
    draw_plain,
    draw_tensor,
)
from forerun.sampling.proposals import (
    Children,
    DraftVocabulary,
    draw_siblings,
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
