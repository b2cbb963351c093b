"""Whether a drafter, a target and a rule can work together, asked once, before anything runs."""

from __future__ import annotations

from forerun.core import CausalLM, Drafter, Drawing
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError


def check_drafter(drafter: Drafter, target: CausalLM, config: SpeculativeConfig) -> None:
    """Refuse what could not be exact or could not run.

    Raises:
        ConfigError: naming the target, the drafter and the way out.
    """
    rule = config.rejection_sample_method
    if rule == "block" and Drawing.DRAW not in drafter.drawings:
        raise ConfigError(
            f"{drafter.name} proposes point masses, which block verification cannot take; "
            "use rejection_sample_method 'token' or 'auto'."
        )
    if rule == "block" and drafter.draws_trees:
        raise ConfigError(
            f"{drafter.name} proposes trees, block verification takes chains; "
            "use rejection_sample_method 'token' or 'auto'."
        )
    missing = [layer for layer in drafter.hidden_layers if not 0 <= layer <= target.num_layers]
    if missing:
        raise ConfigError(
            f"{drafter.name} reads hidden layers {missing} of {target.name}, "
            f"which has layers 0 to {target.num_layers}."
        )
