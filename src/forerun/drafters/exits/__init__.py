"""Early exits of a target: what helps its head to read them."""
