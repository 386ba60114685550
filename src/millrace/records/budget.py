"""What millrace has chosen to keep training within a memory budget."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BudgetChoice:
    """The choice for one program of a model, or for the stages of its pipeline."""

    model: str  # its name
    budget: int | float  # as given: bytes, or a share of what training takes without it
    peak_bytes: int  # what training takes so, on the fullest device
    extra_flops: float | None  # the share of a step's FLOPs that it adds; None for a pipeline
    choice: str  # what is run again, in words

    def __str__(self) -> str:
        return f"keeps to {self.peak_bytes:,} bytes: {self.choice}"
