"""What several equations share: semilinear solves, and moves of the grid that symmetries are made of."""
