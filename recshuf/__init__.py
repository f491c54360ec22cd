"""recshuf: shuffles training data larger than memory, exactly and reproducibly."""

__version__ = "0.1.0"
