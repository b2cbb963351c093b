"""Caches of keys and values that can be rolled back."""

from forerun.kv_cache.compressed import CompressedCache
from forerun.kv_cache.evicting import Evicting, QueryLog
from forerun.kv_cache.fit import (
    check_length,
    check_path,
    check_row,
    check_view,
    held_before,
    layers_to_trim,
)
from forerun.kv_cache.static import Appending, StaticCache
