"""`forerun prove`: exactness by enumeration, by statistical tests, and by equality with plain decoding."""
