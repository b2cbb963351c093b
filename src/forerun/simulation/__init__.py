"""`forerun simulate`: loops over small models, costs of rounds, and the tables made of them."""
