"""What a training run is: its configuration, its options and the parts it is put together from."""
