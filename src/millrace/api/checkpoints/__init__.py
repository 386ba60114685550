"""What a checkpoint has of a training, when it is written, and how the training continues."""
