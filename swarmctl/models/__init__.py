"""What a model is before any library loads it: its shape, and the folders that hold checkpoints. Free of torch."""
