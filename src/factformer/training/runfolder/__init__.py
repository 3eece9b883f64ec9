"""What a run leaves on disk: the folder, its checkpoints, its log."""
