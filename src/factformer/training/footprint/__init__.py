"""What an update takes before it is run: memory, arithmetic and bytes sent, counted on tensors without values."""
