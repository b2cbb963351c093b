"""Commands of `forerun diffusion`, which answer a request with a result."""
