"""What a shell completes for the values of options: names, and files.

Loads nothing that loads torch: a shell asks at every press of the key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from forerun.drafters import DRAFTERS
from forerun.engine.resolve import KNOWN_DRAFTS
from forerun.policies import POLICIES

Completion = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

# Those of `forerun.verification.rule_names`, which loads torch.
RULES = ("auto", "block", "coupled", "standard", "token", "traversal", "typical")
DTYPES = ("auto", "bf16", "fp16", "fp32", "int4", "int8")


def _models() -> list[str]:
    return sorted({"smollm2", *KNOWN_DRAFTS, *KNOWN_DRAFTS.values()})


# By the parameters' names; what is called otherwise has its values in its schema, or none.
COMPLETED: dict[str, Callable[[], Iterable[str]]] = {
    "backend": lambda: ("auto", "kernels", "torch"),
    "device": lambda: ("auto", "cpu", "cuda", "mps"),
    "dtype": lambda: DTYPES,
    "draft_dtype": lambda: DTYPES,
    "draft_model": _models,
    "method": DRAFTERS.names,
    "model": _models,
    "policy": POLICIES.names,
    "rejection_sample_method": lambda: RULES,
    "tree": lambda: ("auto",),
}
# Those whose value may also be a file or a directory.
PATHS = ("model", "draft_model", "tree")


def completion(name: str) -> Completion | None:
    """How a shell completes the parameter `name`; None leaves it to the parameter's type."""
    names = COMPLETED.get(name)
    if names is None:
        return None

    def complete(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
        # bash offers files where no name fits, and forgets the names before them.
        files = [CompletionItem(incomplete, type="file")] if name in PATHS else []
        return files + matching(names(), incomplete)

    return complete


def matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    """The names that begin with what is there."""
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
