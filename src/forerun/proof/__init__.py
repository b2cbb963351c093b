"""`forerun prove`: exactness by enumeration, by statistics, and by equality with plain decoding."""
