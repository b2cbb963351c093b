"""Options of `forerun prove` about a server that is proved from outside."""

from __future__ import annotations

import json
from typing import Annotated, Any

from forerun.errors import ConfigError, shown
from forerun.options import FileName, Text, known, option, options

SUBJECTS = ("forerun", "llama.cpp", "openvino", "transformers")
_OTHERS = ("endpoint", "subject")


@options
class Outside:
    """A server that is proved from outside, and what it is compared with."""

    endpoint: Text | None = option(
        default=None,
        description="URL of an OpenAI-compatible server; its speculation is proved, from outside.",
        excludes=("model", "method", "draft_model"),
    )
    subject: Annotated[str, known("subject", lambda: SUBJECTS)] | None = option(
        default=None,
        description="Another engine, which speculates with --draft-model or by lookup; it is started, proved "
        "and ended. forerun is its server; llama.cpp needs a GGUF file, and llama-server on PATH.",
        excludes=("endpoint", "method"),
        names=lambda: SUBJECTS,
    )
    subject_python: FileName | None = option(
        default=None,
        description="The interpreter that has the engine; left out, this one.",
        requires=("subject",),
    )
    baseline_endpoint: Text | None = option(
        default=None,
        description="The same model without speculation, at another URL.",
        requires=("endpoint",),
        excludes=("switch",),
    )
    switch: Text | None = option(
        default=None,
        description='Fields that switch speculation off for a request, such as {"speculative": false}.',
        requires=("endpoint",),
    )
    reference: Text | None = option(
        default=None,
        description="The checkpoint that the server runs; its rows test every sampled token.",
        requires=("endpoint",),
    )
    served_model: Text | None = option(
        default=None,
        description="Name of the model there; left out, the first that is listed.",
        requires=("endpoint",),
    )
    api_key: Text | None = option(
        default=None, description="Key of the server.", requires=("endpoint",)
    )
    request_timeout: float = option(
        default=120.0, gt=0.0, le=1e6, description="Seconds for a reply.", requires=_OTHERS
    )
    record: FileName | None = option(
        default=None,
        description="Keep all replies there; an interrupted run goes on from it.",
        requires=_OTHERS,
    )

    def __post_init__(self) -> None:
        given = (self.baseline_endpoint, self.switch, self.reference)
        if self.endpoint is not None and given == (None, None, None):
            raise ConfigError(
                "endpoint needs something to compare with; add --switch, --baseline-endpoint or "
                "--reference."
            )
        if self.switch is not None and not self.fields:
            raise ConfigError(
                "switch names no field; give those that switch speculation off, such as "
                '{"speculative": false}.'
            )

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `switch`.

        Raises:
            ConfigError: for anything but a JSON object.
        """
        try:
            fields = json.loads(self.switch or "{}")
        except ValueError:
            fields = None
        if not isinstance(fields, dict):
            raise ConfigError(
                f"switch is {shown(self.switch)}; it must be a JSON object such as "
                '{"speculative": false}.'
            )
        return fields
