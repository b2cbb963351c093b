"""`forerun bench kv`: what each setting of the cache costs in quality, and what it saves."""
