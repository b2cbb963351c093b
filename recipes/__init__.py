"""How the models of forerun-zoo are made; run from the repository, not installed."""
