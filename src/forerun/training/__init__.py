"""Training of drafters and of the zoo: data from a model's own answers, objectives, and a loop."""
