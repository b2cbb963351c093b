"""A larger model with the same text: layers are added to a GGUF file whose outputs are zero.

The added layers repeat those of the file, in their block formats, but what they would write to the residual
stream is zero. So every state up to the file's last layer and every logit stay as they are, bit for bit, and
a forward costs what that of a model of so many weights costs.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from forerun.errors import ConfigError
from forerun.files import atomic_path, write_text
from forerun.heads import CONFIG
from forerun.heads.eagle3 import LAYER_IDS, Eagle3Config, default_layers
from forerun.heads.files import HeadFiles
from forerun.models.gguf.header import GgufHeader

_TO_THE_RESIDUAL = ("attn_output", "ffn_down")


def layers_for(source: Path, billions: float) -> int:
    """The number of layers that gives the model in a file so many billions of parameters.

    Raises:
        ConfigError: for fewer parameters than it has.
    """
    header = GgufHeader.read(source)
    sizes = {name: math.prod(tensor.shape) for name, tensor in header.tensors.items()}
    if billions < sum(sizes.values()) / 1e9:
        raise ConfigError(
            f"{source.name} has {sum(sizes.values()) / 1e9:.3f} billion parameters, more than {billions:g}."
        )
    layer = sum(size for name, size in sizes.items() if name.startswith("blk.0."))
    outside = sum(size for name, size in sizes.items() if not name.startswith("blk."))
    return round((1e9 * billions - outside) / layer)


def write_deep(source: Path, path: Path, num_layers: int) -> Path:
    """Write the model of a file with layers added behind its own, unless that is there."""
    if path.exists():
        return path
    reader: Any = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    counted = f"{architecture}.block_count"
    own = reader.fields[counted].contents()
    with atomic_path(path) as temporary:
        writer = gguf.GGUFWriter(temporary, architecture)
        for name, entry in reader.fields.items():
            if not name.startswith("GGUF.") and name != "general.architecture":
                value = num_layers if name == counted else entry.contents()
                inner = entry.types[-1] if len(entry.types) > 1 else None
                writer.add_key_value(name, value, entry.types[0], inner)
        for name, data, kind in _tensors(reader, own, num_layers):
            writer.add_tensor(name, data, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return path


def _tensors(reader: Any, own: int, num_layers: int) -> Iterator[tuple[str, Any, Any]]:
    """Name, content and type of all tensors."""
    repeated: list[list[tuple[str, Any, Any]]] = [[] for _ in range(own)]
    for tensor in reader.tensors:
        yield tensor.name, tensor.data, tensor.tensor_type
        if tensor.name.startswith("blk."):
            _, layer, rest = tensor.name.split(".", 2)
            # In every format blocks of zero bytes are zeros.
            zero = rest.startswith(_TO_THE_RESIDUAL)
            data = np.zeros_like(tensor.data) if zero else tensor.data
            repeated[int(layer)].append((rest, data, tensor.tensor_type))
    for layer in range(own, num_layers):
        for rest, data, kind in repeated[layer % own]:
            yield f"blk.{layer}.{rest}", data, kind


def write_deep_head(head: Path, directory: Path, num_layers: int) -> Path:
    """Write an EAGLE head whose config names the layers that it reads of a target of `num_layers`, so that it
    reads the same when there are more behind them."""
    files = HeadFiles.open(head)
    layers = Eagle3Config.read(files.config, files.name).hidden_layers or default_layers(num_layers)
    shutil.copytree(head, directory, dirs_exist_ok=True)
    write_text(
        directory / CONFIG, json.dumps({**files.config, LAYER_IDS: list(layers)}, indent=2) + "\n"
    )
    return directory
