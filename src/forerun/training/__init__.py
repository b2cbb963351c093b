"""What drafters and the zoo are trained with: a model's own answers, objectives, a loop with a budget."""
