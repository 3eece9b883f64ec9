"""Making datasets: what they will hold, the solver's loop, and where the frames go."""
