"""Subjects of a proof: whatever answers prompts, asked one by one or several at once."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, Protocol

from forerun.errors import ConfigError, EndpointError
from forerun.measure.ledger import Format, Ledger
from forerun.proof.outside.client import Endpoint
from forerun.proof.outside.reply import Reply, Spoken, margin_at

Body = Mapping[str, Any]
"""Fields of a request beside its prompt, in OpenAI's names."""

# What is asked of a server beside the text, the most useful first; a server that refuses gets the next.
_EXTRAS: Sequence[Body] = (
    {"logprobs": 5, "return_token_ids": True},
    {"logprobs": 5},
    {"return_token_ids": True},
    {},
)
_UNKNOWN, _ABSENT = (400, 422), (404, 405, 501)


class AskedSubject(Protocol):
    """A server or checkpoint that answers prompts.

    Attributes:
        name: what it is in the certificate.
        is_reference: it is a checkpoint that runs here, and not the engine in question.
    """

    name: str
    is_reference: bool

    def ask(self, prompts: Sequence[str], body: Body, at_once: int = 1) -> list[Reply]:
        """The replies to prompts under the same settings, `at_once` at a time."""
        ...

    def margin(
        self, prompt: str, own: Spoken, other: Spoken, index: int, body: Body
    ) -> float | None:
        """Distance in log probability of the tokens of its own and another answer at an index.

        None where the server does not tell.
        """
        ...


@dataclass(frozen=True)
class Kept:
    """A recorded reply, under the key of its request."""

    key: str
    content: Any


RECORD = Format[Kept](
    "forerun_outside",
    1,
    "forerun prove --endpoint",
    ConfigError,
    lambda kept: {"key": kept.key, "content": kept.content},
    lambda line: Kept(line["key"], line["content"]),
)


@dataclass
class ReplyRecord:
    """Replies of an earlier run that was interrupted, and the file to which further ones go."""

    kept: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger[Kept] | None = None
    _lock: Lock = field(default_factory=Lock)

    @classmethod
    def open(cls, path: str | None, header: Body) -> ReplyRecord:
        """The record in a file; one that is not kept without a path."""
        record = cls()
        if path is not None:
            record.ledger = Ledger(path, RECORD, header, record._see)
        return record

    def _see(self, kept: Kept) -> None:
        self.kept[kept.key] = kept.content

    def add(self, key: str, content: Any) -> None:
        if self.ledger is not None:
            with self._lock:
                self.ledger.append([Kept(key, content)])


@dataclass
class ServerSubject:
    """A model of a server, with fields that every request has.

    Args:
        name: what it is in the certificate.
        fields: merged into every body, such as those that switch speculation off.
        model: name of the model there.
        chat: it is asked by /v1/chat/completions, the prompt being a user's message.
        extras: what it tells beside the text.

    Attributes:
        drafted: drafted tokens of all replies, as far as the server tells.
    """

    name: str
    endpoint: Endpoint
    model: str
    record: ReplyRecord
    fields: Body = field(default_factory=dict)
    chat: bool = False
    extras: Body = field(default_factory=dict)
    is_reference: bool = field(default=False, init=False)
    drafted: int = field(default=0, init=False)
    _asked: Counter[str] = field(default_factory=Counter)

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def open(self, prompt: str) -> ServerSubject:
        """Find out what the server offers, by short requests.

        Raises:
            EndpointError: if it answers none of them.
        """
        refusal: EndpointError | None = None
        for self.chat in (False, True):
            for self.extras in _EXTRAS:
                try:
                    self.endpoint.post(self.path, self.body(prompt, {"max_tokens": 1}))
                    return self
                except EndpointError as error:
                    if error.status not in (*_UNKNOWN, *_ABSENT):
                        raise
                    refusal = error
                    if error.status in _ABSENT:
                        break
        assert refusal is not None
        raise refusal

    def body(self, prompt: str, body: Body) -> dict[str, Any]:
        """The whole body of a request."""
        asked: dict[str, Any] = {"model": self.model, **self.extras, **body, **self.fields}
        if not self.chat:
            return asked | {"prompt": prompt}
        if count := asked.pop("logprobs", None):
            asked |= {"logprobs": True, "top_logprobs": count}
        return asked | {"messages": [{"role": "user", "content": prompt}]}

    def ask(self, prompts: Sequence[str], body: Body, at_once: int = 1) -> list[Reply]:
        """Replies, as `AskedSubject` says; those in the record are not asked for again.

        Raises:
            EndpointError: if the server is down, too slow, or refuses.
        """
        jobs = [self._job(self.body(prompt, body)) for prompt in prompts]
        if at_once == 1:
            return [self._reply(*job) for job in jobs]
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda job: self._reply(*job), jobs))

    def margin(
        self, prompt: str, own: Spoken, other: Spoken, index: int, body: Body
    ) -> float | None:
        return margin_at(own, other, index, body)

    def _job(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """Key of a request, which tells apart repetitions, and its body."""
        text = json.dumps([self.endpoint.url, body], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        self._asked[digest] += 1
        return f"{digest}-{self._asked[digest]}", body

    def _reply(self, key: str, body: Body) -> Reply:
        content = self.record.kept.get(key)
        if content is None:
            content = self.endpoint.post(self.path, body)
            try:
                Reply.of(content)
            except (KeyError, TypeError, AttributeError, IndexError):
                raise EndpointError(
                    f"{self.endpoint.url}{self.path} answers in another form than OpenAI's; give the "
                    "address of an OpenAI-compatible server."
                ) from None
            self.record.add(key, content)
        reply = Reply.of(content)
        count = reply.timings.get("draft_n")
        self.drafted += count if isinstance(count, int) else 0
        return reply


def is_refusal(error: EndpointError) -> bool:
    """True if a server refuses this request, rather than being down or broken."""
    status = error.status
    return status is not None and (status < 500 or status in _ABSENT)


def served_model(endpoint: Endpoint) -> str:
    """Name of the first model that a server lists.

    Raises:
        EndpointError: if it lists none.
    """
    try:
        return str(endpoint.get("/v1/models")["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise EndpointError(f"{endpoint.url} lists no model; name it by --served-model.") from None
