"""What went through a feed, and who waited for whom."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeedStatistics:
    """Counts of one infeed, or of several added up."""

    blocks: int = 0  # blocks handed to the loop
    steps: int = 0  # batches in them
    bytes: int = 0  # of these batches, on the device
    prepare_seconds: float = 0.0  # the feeding thread: reading, stacking, starting the transfer
    wait_seconds: float = 0.0  # the training loop, for a block that was not there yet
    peak_depth: int = 0  # most blocks that were ready at once

    def __add__(self, other: "FeedStatistics") -> "FeedStatistics":
        """Adds counts and seconds; of the two peaks the higher one stays."""
        return FeedStatistics(
            blocks=self.blocks + other.blocks,
            steps=self.steps + other.steps,
            bytes=self.bytes + other.bytes,
            prepare_seconds=self.prepare_seconds + other.prepare_seconds,
            wait_seconds=self.wait_seconds + other.wait_seconds,
            peak_depth=max(self.peak_depth, other.peak_depth),
        )
