"""Equal-cost runs of many models within a limited time on a GPU."""
