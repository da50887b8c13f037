"""Loaded by Triton; everything is in the package."""

from tandem.triton_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
