"""The batches of a run: which windows, where they are kept, and what is done to them."""
