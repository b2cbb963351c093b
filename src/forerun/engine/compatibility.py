"""Whether a drafter, a target and a rule can work together, asked once, before anything runs."""

from __future__ import annotations

from forerun.contracts import CausalLM, Drafter
from forerun.core import Drawing
from forerun.engine.config import SpeculativeConfig
from forerun.errors import ConfigError, IncompatibleDraftError
from forerun.trees import TreeShape


def check_drafter(
    drafter: Drafter, target: CausalLM, config: SpeculativeConfig, max_batch_size: int
) -> None:
    """Refuse what could not be exact or could not run.

    Raises:
        ConfigError: naming the target, the drafter and the way out.
        IncompatibleDraftError: where the vocabularies differ.
    """
    rule = config.rejection_sample_method
    draws = Drawing.DRAW in drafter.drawings and config.draft_sample_method != "greedy"
    if rule in ("block", "traversal") and Drawing.DRAW not in drafter.drawings:
        raise ConfigError(
            f"{drafter.name} proposes point masses, which {rule} verification cannot take; "
            "use rejection_sample_method 'token' or 'auto'."
        )
    if rule == "typical" and draws and (drafter.draws_trees or config.tree is not None):
        raise ConfigError(
            f"{drafter.name} draws trees, typical acceptance takes trees of most likely tokens; "
            "use draft_sample_method 'greedy', or rejection_sample_method 'auto'."
        )
    if rule == "block" and drafter.draws_trees:
        raise ConfigError(
            f"{drafter.name} proposes trees, block verification takes chains; "
            "use rejection_sample_method 'token' or 'auto'."
        )
    if config.tree is not None and not drafter.takes_trees:
        raise ConfigError(f"{drafter.name} proposes chains alone; leave the tree out.")
    if config.tree is not None and rule == "block":
        raise ConfigError(
            "block verification takes chains; leave the tree out, or use rejection_sample_method "
            "'traversal' or 'auto'."
        )
    missing = [layer for layer in drafter.hidden_layers if not 0 <= layer <= target.num_layers]
    if missing:
        raise ConfigError(
            f"{drafter.name} reads hidden layers {missing} of {target.name}, "
            f"which has layers 0 to {target.num_layers}."
        )
    if drafter.vocab_size not in (None, target.vocab_size):
        raise IncompatibleDraftError(
            f"{drafter.name} proposes from {drafter.vocab_size} tokens and {target.name} has "
            f"{target.vocab_size}; they must share one vocabulary."
        )
    if drafter.rows is not None and drafter.rows < max_batch_size:
        raise ConfigError(
            f"{drafter.name} was built for {drafter.rows} sequences at once and the engine runs "
            f"{max_batch_size}; build it with as many rows."
        )


def check_depth(tree: TreeShape | str | None, config: SpeculativeConfig) -> None:
    """Refuse a tree of which the lower part would never be drafted.

    Raises:
        ConfigError: with both numbers.
    """
    if isinstance(tree, TreeShape) and tree.depth > config.num_speculative_tokens:
        raise ConfigError(
            f"the tree is {tree.depth} deep and num_speculative_tokens is "
            f"{config.num_speculative_tokens}; raise that to {tree.depth}, or cut the tree."
        )
