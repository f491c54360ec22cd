"""Training with PyTorch from piles: a data set for its `DataLoader`, and a loader whose state counts."""

from __future__ import annotations

from recshuf.torch.data_loader import PileDataLoader
from recshuf.torch.dataset import PileDataset

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(
        "recshuf.torch needs PyTorch, which is not installed; install recshuf[torch]"
    ) from error
__all__ = ["PileDataLoader", "PileDataset"]
del _torch
