"""Data that a run leaves behind. Frozen; standard library only."""
