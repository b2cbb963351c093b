"""Request of `forerun serve`, and the server that it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from forerun.compression import Compression
from forerun.engine.config import SpeculativeConfig
from forerun.engine.options import ModelOptions, speculation
from forerun.engine.resolve import choose
from forerun.errors import ConfigError
from forerun.files import read_text
from forerun.options import FileName, Text, option, options, part
from forerun.progress import say

if TYPE_CHECKING:
    from forerun.engine.engine import Engine
    from forerun.report.result import Result

# Addresses that only this machine reaches.
LOCAL = ("127.0.0.1", "localhost", "::1")
NEEDED = ("fastapi", "uvicorn", "prometheus_client", "llguidance")
MEBI = 1 << 20


@options
class ServeRequest:
    """Serve a model to OpenAI's clients: chat, completions, streams, and metrics.

    The server answers on this machine alone; any other address needs a key. It drains on SIGTERM: what
    runs is finished, what is new is refused.
    """

    common: ClassVar[Sequence[str]] = (
        *("model", "host", "port", "api_key", "api_key_file", "max_batch_size", "max_context"),
        *("method", "draft_model", "speculative"),
    )

    model: ModelOptions = part(
        default=ModelOptions,
        section="Model",
        help={
            "max_context": "Tokens of prompt and output at most; left out, the model's context up to 4096."
        },
    )
    served_model_name: tuple[Text, ...] = option(
        default=(),
        description="Name of the model for clients; left out, its own.",
        repeat=True,
        section="Model",
    )
    compression: Compression = part(default=Compression, section="Cache", requires=("kv_method",))
    host: Text = option(
        default="127.0.0.1",
        description="Address to listen on; any but localhost needs a key.",
        section="Server",
    )
    port: int = Field(default=8000, ge=0, le=65535, description="Port; 0 takes a free one.")
    api_key: tuple[Text, ...] = option(
        default=(),
        description="Key that clients must send; requests of different keys share nothing.",
        repeat=True,
    )
    api_key_file: FileName | None = option(default=None, description="A file of keys, one a line.")
    max_batch_size: int = Field(
        default=4, ge=1, le=1024, description="Requests that run at once; more wait."
    )
    max_queue: int = Field(
        default=256, ge=0, le=1 << 20, description="Requests that may wait; more are refused."
    )
    max_requests_per_key: int | None = Field(
        default=None,
        ge=1,
        le=1 << 20,
        description="Requests of one key at once, waiting ones included.",
    )
    max_body: int = Field(default=16, ge=1, le=1024, description="MiB of a request at most.")
    request_timeout: float | None = Field(
        default=None, gt=0.0, le=1e6, description="Seconds that a request may take; no limit."
    )
    drain_timeout: float = Field(
        default=30.0, ge=0.0, le=1e6, description="Seconds for running requests after SIGTERM."
    )
    stream_pacing: bool = option(
        default=False,
        description="Spread the tokens of a round over the time that it took, or send them at once.",
    )
    metrics_prefix: Text = Field(default="forerun", description="Beginning of metrics' names.")
    speculative: bool = option(
        default=True, description="Draft ahead, or decode plainly.", section="Speculation"
    )
    speculation: SpeculativeConfig = speculation(requires=("speculative",))

    @property
    def keys(self) -> tuple[str, ...]:
        """API keys of the options, or of the file of keys.

        Raises:
            ConfigError: for a file that cannot be read, or holds none.
        """
        if self.api_key_file is None:
            return self.api_key
        text = read_text(self.api_key_file, "--api-key-file", ConfigError)
        found = [line.strip() for line in text.splitlines() if line.strip()]
        if not found:
            raise ConfigError(f"--api-key-file {self.api_key_file} holds no key; write one a line.")
        return (*self.api_key, *found)


def run(request: ServeRequest) -> Result:
    """Serve until the process is told to end.

    Raises:
        ForerunError: for a model, method or address that does not fit.
    """
    from forerun.monitor.exposition import check_prefix

    missing = [name for name in NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigError(f"serve needs {missing[0]}; run: pip install 'forerun[serve]'.")
    check_prefix(request.metrics_prefix)
    keys = request.keys
    if not keys and request.host not in LOCAL:
        raise ConfigError(
            f"--host is {request.host}, which others can reach; add --api-key or --api-key-file, or "
            "listen on localhost."
        )
    load = loader(request)
    from forerun.report.result import Result
    from forerun.server.listen import listen

    listen(request, keys, load, say)
    return Result()


def loader(request: ServeRequest) -> Callable[[], Engine]:
    """Open the model; returns what loads its engine.

    Raises:
        ForerunError: for a model or method that does not fit.
    """
    choice = choose(request.speculation, request.model.model) if request.speculative else None
    return partial(
        request.model.load,
        request.model.open(),
        choice,
        max_context=request.model.max_context,
        max_batch_size=request.max_batch_size,
        compression=request.compression,
    )
