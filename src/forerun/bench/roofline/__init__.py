"""`forerun roofline`: the limits of a machine, and where a model's forwards lie below them."""
