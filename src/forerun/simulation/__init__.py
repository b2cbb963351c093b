"""`forerun simulate`: decoding of small models, costs of rounds, and tables of the results."""
