"""Sessions: the cache of a text on disk, so that a long document is read once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor

import forerun
from forerun.contracts import Ability, CausalLM, SavesRows
from forerun.core import Batch, Exactness
from forerun.engine.scheduler import Scheduler
from forerun.errors import ConfigError, SessionError, UnsupportedModelError, shown
from forerun.kv_cache.session_file import Contents, Session, SessionFile, write_session

# Number of first tokens of a session, and of logits after them, by which its weights are recognized.
_PROBE_TOKENS, _PROBE_LOGITS = 16, 256
# Tolerance relative to the largest logit, for models whose results depend on threads and processor.
_TOLERANCE = {torch.float16: 0.03, torch.bfloat16: 0.03}
_USUAL_TOLERANCE = 1e-3
_OTHER_PROCESSOR = " Processors with AMX and without differ so too, in bf16."
# Facts that are written for people and not compared.
_INFORMATIVE = ("model", "forerun")
_NONE: Mapping[str, str] = {}


class Sessions:
    """Saves texts that an engine's cache holds, and loads them again.

    Args:
        scheduler: the engine's.
        max_context: most prompt and output tokens of a request.
    """

    def __init__(self, scheduler: Scheduler, max_context: int) -> None:
        self._scheduler, self._max_context = scheduler, max_context
        self._parts, self._target = scheduler.parts, scheduler.parts.target

    def save(
        self,
        path: str | os.PathLike[str],
        *,
        notes: Mapping[str, str] = _NONE,
    ) -> Session:
        """Write the keys and values of the last request that ended, so that its text need not be read again.

        Args:
            path: the safetensors file, which is replaced as a whole or not at all.
            notes: texts to save with it.

        Raises:
            ConfigError: if none has ended, prefixes are not reused, or the cache evicts.
            UnsupportedModelError: for a model whose cache cannot be saved.
            SessionError: if the file cannot be written.
        """
        self.check()
        if not all(isinstance(text, str) for pair in notes.items() for text in pair):
            raise ConfigError(f"notes are {shown(notes)}; they must be texts by name.")
        with self._scheduler.alone():
            row, held = self._scheduler.last_text()
            probe = _probe(self._target, held)
            contents = Contents(tuple(held), probe, _facts(self._target, self._rows), notes)
            return write_session(path, contents, self._rows, row)

    def load(self, path: str | os.PathLike[str]) -> Session:
        """Read a session written by `save` into a free row.

        Of a prompt that begins with its tokens only the rest is run. Nothing changes if it fails.

        Raises:
            SessionError: for a file that is damaged or not a session, or from another model,
                precision or kind of cache, or longer than the context.
            ConfigError: if no row is free, prefixes are not reused, or the cache evicts.
            UnsupportedModelError: for a model whose cache cannot be saved.
        """
        self.check()
        file = SessionFile(path)
        _check_facts(file, _facts(self._target, self._rows))
        count = len(file.contents.token_ids)
        if count >= self._max_context:
            raise SessionError(
                f"{file.name} holds {count} tokens and the context is {self._max_context}, one of them for "
                f"output; raise max_context to {count + 1} or more."
            )
        file.check(self._rows)
        with self._scheduler.alone():
            _check_probe(file, self._target)
            held = list(file.contents.token_ids)
            self._scheduler.fill_row(held, lambda row: file.read_into(self._rows, row))
        return file.session

    def check(self) -> None:
        """Check that sessions can be saved and loaded here.

        Raises:
            ConfigError: if prefixes are not reused, or the cache evicts.
            UnsupportedModelError: for a model whose cache cannot be saved.
        """
        if self._parts.evicts:
            raise ConfigError(
                "a cache that evicts cannot be saved as a session: what it has evicted is gone, so that "
                "another text could not go on from it; leave kv_method out."
            )
        if not self._scheduler.prefix_reuse:
            raise ConfigError("sessions need prefix_reuse, which is off; leave it on.")
        if Ability.SESSIONS not in self._target.abilities:
            raise UnsupportedModelError(
                f"the cache of {self._target.name} cannot be saved as a session; load a model that forerun "
                "runs itself, with backend 'kernels' or 'torch'."
            )

    @property
    def _rows(self) -> SavesRows:
        return cast(SavesRows, self._parts.cache)


def read_session(path: str | os.PathLike[str]) -> Session:
    """The session in a file, without its keys and values; no model is needed.

    Raises:
        SessionError: for a file that is damaged or not a session.
    """
    return SessionFile(path).session


def _facts(target: CausalLM, cache: SavesRows) -> dict[str, str]:
    """Facts about the model and the cache that a session is from."""
    facts = {
        "model": target.name,
        "forerun": forerun.__version__,
        "precision": target.precision,
        "vocab_size": target.vocab_size,
        "hidden_size": target.hidden_size,
        **{f"cache_{name}": value for name, value in cache.row_format.items()},
    }
    return {name: str(value) for name, value in facts.items()}


def _check_facts(file: SessionFile, here: Mapping[str, str]) -> None:
    there = file.contents.facts
    names = [name for name in {**here, **there} if name not in _INFORMATIVE]
    differ = [
        f"{name} is {_fact(there.get(name))} there and {_fact(here.get(name))} here"
        for name in names
        if there.get(name) != here.get(name)
    ]
    if differ:
        raise SessionError(
            f"{file.name} was saved from {there.get('model', '?')} and does not fit {here['model']}: "
            f"{'; '.join(differ)}. Load the model as it was then, or read the text again."
        )


def _fact(value: str | None) -> str:
    """A fact for a message."""
    return "unknown" if value is None else value if value.isprintable() else shown(value)


def _check_probe(file: SessionFile, target: CausalLM) -> None:
    """Refuse a session of other weights.

    Raises:
        SessionError: with the difference.
    """
    held = list(file.contents.token_ids)
    if not 0 <= min(held) <= max(held) < target.vocab_size:
        raise SessionError(f"{file.name} is damaged: it holds token ids outside the vocabulary.")
    there, here = file.contents.probe, _probe(target, held)
    most = 0.0
    if target.exactness is not Exactness.BITWISE:
        most = float(here.abs().max()) * _TOLERANCE.get(target.dtype, _USUAL_TOLERANCE)
    apart = float((there - here).abs().max()) if there.shape == here.shape else float("inf")
    # `apart > most` would be false for NaN.
    if not apart <= most and not torch.equal(there, here):
        count = min(len(held), _PROBE_TOKENS)
        raise SessionError(
            f"{file.name} was saved with other weights ({file.contents.facts.get('model', '?')}): after its "
            f"first {count} tokens logits differ by up to {apart:.3g}, and {most:.3g} is allowed. Load those "
            f"weights, or read the text again.{'' if most else _OTHER_PROCESSOR}"
        )


def _probe(target: CausalLM, token_ids: list[int]) -> Tensor:
    """Logits after the first tokens of a text, float32 [k], computed with a cache of their own."""
    first = token_ids[:_PROBE_TOKENS]
    cache = target.new_cache(1, len(first))
    logits = target.forward(Batch.after(cache, [0], [first], logits_for="last"), cache).logits
    assert logits is not None
    step = -(-logits.shape[-1] // _PROBE_LOGITS)
    return logits[0, 0, ::step].float().cpu().contiguous()
