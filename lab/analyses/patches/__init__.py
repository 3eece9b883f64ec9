"""What patches, and shapes of the network on their grid, are worth, and what is seen of them in predictions."""
