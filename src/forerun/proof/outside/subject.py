"""Subjects of a proof: whatever answers prompts, asked one by one or several at once."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

from forerun.errors import ConfigError, EndpointError, shown
from forerun.measure.ledger import Format, Ledger
from forerun.proof.outside.client import ABSENT, UNKNOWN, Endpoint, RefusedError
from forerun.proof.outside.reply import Reply, Spoken, margin_at

Body = Mapping[str, Any]
"""Fields of a request beside its prompt, in OpenAI's names."""

_DONE = "[DONE]"
# What is asked of a server beside the text, the most useful first; a server that refuses gets the next.
# Some draw within top-k, top-p and min-p of their own unless they are told otherwise.
_EXTRAS: Sequence[Body] = tuple(
    {**neutral, **told}
    for neutral in ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, {"top_p": 1.0}, {})
    for told in (
        {"logprobs": 5, "return_token_ids": True, "return_origins": True},
        {"logprobs": 5, "return_token_ids": True},
        {"logprobs": 5},
        {"return_token_ids": True},
        {},
    )
)


class Subject(ABC):
    """A server, engine or checkpoint that answers prompts.

    Attributes:
        name: what it is in the certificate.
        model: name of the model there.
        is_reference: it is a checkpoint that runs here, and not the engine in question.
        one_at_a_time: it never answers several requests at once.
        drafted: drafted tokens of all replies, as far as they are told.
    """

    name: str
    model: str
    is_reference: bool = False
    one_at_a_time: bool = False
    drafted: int = 0

    @abstractmethod
    def ask(self, prompts: Sequence[str], body: Body, at_once: int = 1) -> list[Reply]:
        """The replies to prompts under the same settings, `at_once` at a time.

        Raises:
            EndpointError: if it is down, too slow, or refuses.
        """

    def margin(
        self, prompt: str, own: Spoken, other: Spoken, index: int, body: Body
    ) -> float | None:
        """Distance in log probability of the tokens of its own and another answer at an index.

        By the alternatives that its own answer tells; None where it tells none.
        """
        return margin_at(own, other, index, body)

    def stream(self, prompt: str, body: Body) -> Iterator[str]:
        """Pieces of an answer's text.

        Raises:
            EndpointError: as `ask`.
        """
        raise RefusedError(f"{self.name} has no streams.", 501)

    def facts(self) -> dict[str, Any]:
        """Description for the certificate."""
        return {"name": self.name, "model": self.model}

    def limits(self) -> Iterator[str]:
        """Sentences on waits, broken text, and what it does not tell."""
        yield from ()


RECORD = Format[dict[str, Any]](
    "forerun_outside",
    1,
    "forerun prove --endpoint",
    ConfigError,
    dict,
    lambda line: {"key": line["key"], "content": line["content"]},
)


@dataclass
class ReplyRecord:
    """Replies of an earlier run that was interrupted, and the file to which further ones go."""

    kept: dict[str, Any] = field(default_factory=dict)
    ledger: Ledger[dict[str, Any]] | None = None
    _lock: Lock = field(default_factory=Lock)
    _asked: Counter[str] = field(default_factory=Counter)

    @classmethod
    def open(cls, path: str | None, header: Body) -> ReplyRecord:
        """The record in a file; one that is not kept without a path."""
        record = cls()
        if path is not None:
            record.ledger = Ledger(path, RECORD, header, record._see)
        return record

    def _see(self, line: dict[str, Any]) -> None:
        self.kept[line["key"]] = line["content"]

    def key(self, *request: Any) -> str:
        """Key of a request, which tells apart repetitions."""
        text = json.dumps(request, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:24]
        self._asked[digest] += 1
        return f"{digest}-{self._asked[digest]}"

    def reply(self, key: str, fetch: Callable[[], Any]) -> Any:
        """The recorded reply of a key, or the one that `fetch` returns."""
        if key in self.kept:
            return self.kept[key]
        content = fetch()
        if self.ledger is not None:
            with self._lock:
                self.ledger.append([{"key": key, "content": content}])
        return content


@dataclass
class ServerSubject(Subject):
    """A model of a server, with fields that every request has.

    Args:
        fields: merged into every body, such as those that switch speculation off.
        chat: it is asked by /v1/chat/completions, the prompt being a user's message.
        extras: what it tells beside the text.
    """

    name: str
    endpoint: Endpoint
    model: str
    record: ReplyRecord
    fields: Body = field(default_factory=dict)
    chat: bool = False
    extras: Body = field(default_factory=dict)
    drafted: int = field(default=0, init=False)

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def open(self, prompt: str) -> ServerSubject:
        """Find out what the server offers, by short requests.

        Raises:
            EndpointError: if it answers none of them.
        """
        last: RefusedError | None = None
        for self.chat in (False, True):
            for self.extras in _EXTRAS:
                try:
                    self.endpoint.fetch(self.path, self.body(prompt, {"max_tokens": 1}))
                    return self
                except RefusedError as error:
                    if error.status not in (*UNKNOWN, *ABSENT):
                        raise
                    last = error
                    if error.status in ABSENT:
                        break
        assert last is not None
        raise last

    def body(self, prompt: str, body: Body) -> dict[str, Any]:
        """The whole body of a request."""
        asked: dict[str, Any] = {"model": self.model, **self.extras, **body, **self.fields}
        if not self.chat:
            return asked | {"prompt": prompt}
        if count := asked.pop("logprobs", None):
            asked |= {"logprobs": True, "top_logprobs": count}
        return asked | {"messages": [{"role": "user", "content": prompt}]}

    def ask(self, prompts: Sequence[str], body: Body, at_once: int = 1) -> list[Reply]:
        """Replies, as `Subject` says; those in the record are not asked for again."""
        bodies = [self.body(prompt, body) for prompt in prompts]
        jobs = [(self.record.key(self.name, body), body) for body in bodies]
        if at_once == 1:
            return [self._reply(*job) for job in jobs]
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(lambda job: self._reply(*job), jobs))

    def stream(self, prompt: str, body: Body) -> Iterator[str]:
        for line in self.endpoint.lines(self.path, self.body(prompt, {**body, "stream": True})):
            name, _, content = line.strip().partition(":")
            if name == "data" and content.strip() != _DONE:
                choices = _event(content).get("choices") or [{}]
                delta = choices[0].get("delta") or {}
                yield choices[0].get("text") or delta.get("content") or ""

    def facts(self) -> dict[str, Any]:
        return {
            "endpoint": self.endpoint.url,
            "software": self.endpoint.software or "unknown",
            "model": self.model,
            "asked_by": self.path,
            "told": sorted(self.extras),
            "switch": dict(self.fields),
        }

    def limits(self) -> Iterator[str]:
        if not self.drafted:
            yield (
                "The server does not tell that it drafted: speculation that is off, or a switch that is "
                "ignored, would pass."
            )
        if waits := self.endpoint.waits:
            yield f"The server was full {waits} times; those requests waited and were repeated."
        if broken := self.endpoint.broken:
            yield f"{broken} responses were not UTF-8."
        if "logprobs" not in self.extras:
            yield "The server tells no log probabilities: no greedy difference can be called a defect."
        if self.chat:
            yield "The server was asked by chat alone: prompts that go on, and prefill, were not compared."

    def _reply(self, key: str, body: Body) -> Reply:
        content = self.record.reply(key, lambda: self.endpoint.fetch(self.path, body))
        try:
            reply = Reply.of(content)
        except (KeyError, TypeError, AttributeError, IndexError):
            raise EndpointError(
                f"{self.endpoint.url}{self.path} answers in another form than OpenAI's; give the "
                "address of an OpenAI-compatible server."
            ) from None
        count = reply.timings.get("draft_n")
        self.drafted += count if isinstance(count, int) else 0
        return reply


def served_model(endpoint: Endpoint) -> str:
    """Name of the first model that a server lists.

    Raises:
        EndpointError: if it lists none.
    """
    try:
        return str(endpoint.fetch("/v1/models")["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise EndpointError(f"{endpoint.url} lists no model; name it by --served-model.") from None


def _event(content: str) -> dict[str, Any]:
    """An event of a stream.

    Raises:
        EndpointError: for another form than OpenAI's, or an error of the server.
    """
    try:
        event = json.loads(content)
    except ValueError:
        event = None
    if isinstance(event, dict) and "error" not in event:
        return event
    raise RefusedError(f"a stream holds {shown(content)}, which is no event of OpenAI's form.")
