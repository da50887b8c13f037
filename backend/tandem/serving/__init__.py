"""Starts, watches and stops a real Triton Inference Server."""

from tandem.serving.errors import ServingError
from tandem.serving.installation import Installation, find_installation
from tandem.serving.options import ServerOptions
from tandem.serving.server import Endpoints, TritonServer

__all__ = [
    "Endpoints",
    "Installation",
    "ServerOptions",
    "ServingError",
    "TritonServer",
    "find_installation",
]
