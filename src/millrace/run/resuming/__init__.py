"""The parts of a training, saved so that it continues from a checkpoint with the same numbers."""
