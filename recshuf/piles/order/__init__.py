"""The order of epochs over a kept store."""
