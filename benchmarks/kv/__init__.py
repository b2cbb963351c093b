"""Quality and speed of each setting of the cache beside the full one."""
