"""The peer of `pipeline_processes.py`: the same stages in PyTorch, over gloo. Needs torch only.

python torchpeer.py transformer 256 4 16 1,6 127.0.0.1:1234 0
                    kind, width, rows, micro-batches, updates, address, rank
"""

import functools
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import workers

SEQUENCE, HEADS, RATE = 64, 4, 0.01


class Block(nn.Module):
    """Pre-norm attention and MLP."""

    def __init__(self, width: int):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(width, eps=1e-3) for _ in range(2)])
        self.attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns the input of the next block."""
        y = self.norms[0](x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


def make_stage(kind: str, width: int) -> nn.Module:
    """Returns one stage."""
    if kind == "transformer":
        return nn.Sequential(Block(width), Block(width))
    return nn.Sequential(*[part for _ in range(4) for part in (nn.Linear(width, width), nn.Tanh())])


def main() -> None:
    """Builds the stage of this rank and serves."""
    kind, *sizes, updates, address, rank = sys.argv[1:]
    width, rows, micro_batches = map(int, sizes)
    index = int(rank)
    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://{address}", rank=index, world_size=2)
    module = make_stage(kind, width)
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE)
    stage = PipelineStage(module, index, 2, torch.device("cpu"))
    loss_of = nn.functional.mse_loss
    schedule = Schedule1F1B(stage, micro_batches, loss_fn=loss_of)
    shape = (SEQUENCE, width) if kind == "transformer" else (width,)
    x, y = torch.randn(micro_batches * rows, *shape), torch.randn(micro_batches * rows, *shape)

    def pipeline(updates: int) -> None:
        for _ in range(updates):
            schedule.step(x) if index == 0 else schedule.step(target=y)
            optimizer.step()
            optimizer.zero_grad()

    # The last stage, which also computes the gradient of its input: the longer of the two.
    inputs = [part.clone().requires_grad_() for part in x.chunk(micro_batches)]
    targets = y.chunk(micro_batches)

    def alone(updates: int) -> None:
        for _ in range(updates):
            for part, target in zip(inputs, targets, strict=True):
                loss_of(module(part), target).div(micro_batches).backward()
                part.grad = None
            optimizer.step()
            optimizer.zero_grad()

    cases: dict[str, Callable[[], object]] = {
        f"torch {function.__name__} {n}": functools.partial(function, int(n))
        for function in (pipeline, alone)
        for n in updates.split(",")
    }
    cases["parameters"] = lambda: float(sum(p.numel() for p in module.parameters()))
    workers.serve(cases, f"torch {torch.__version__}")


if __name__ == "__main__":
    main()
