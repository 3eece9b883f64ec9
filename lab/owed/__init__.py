"""The queue of what has not been run on a GPU yet."""
