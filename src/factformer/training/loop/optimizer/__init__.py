"""How the weights move: the optimiser, its learning rate, and the average of the weights."""
