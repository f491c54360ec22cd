"""Training with PyTorch from piles: a data set for its `DataLoader`, and a loader whose state counts."""

from __future__ import annotations

try:
    from recshuf.torch.data_loader import PileDataLoader
    from recshuf.torch.dataset import PileDataset
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "torch":
        raise
    raise ImportError(
        "recshuf.torch needs PyTorch, which is not installed; install recshuf[torch]"
    ) from error
__all__ = ["PileDataLoader", "PileDataset"]
