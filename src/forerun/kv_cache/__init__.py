"""Caches of keys and values that can be rolled back."""

from forerun.kv_cache.static import Appending, CacheView, StaticCache

__all__ = ["Appending", "CacheView", "StaticCache"]
