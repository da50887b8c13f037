"""Clients of a Tandem model on Triton: gRPC and HTTP, blocking and asyncio, one interface."""

from tandem_client.base import AsyncChunkStream, AsyncClient, ChunkStream, Client
from tandem_client.errors import (
    Cancelled,
    DeadlineExceeded,
    Denied,
    InvalidArgument,
    NotFound,
    ServerError,
    TandemError,
    Unavailable,
    Unsupported,
)
from tandem_client.grpc_client import AsyncGrpcClient, GrpcClient
from tandem_client.http_client import AsyncHttpClient, HttpClient
from tandem_client.params import GenerationParams
from tandem_client.types import Chunk, Completion, SpeculationStats, Timing

__all__ = [
    "AsyncChunkStream",
    "AsyncClient",
    "AsyncGrpcClient",
    "AsyncHttpClient",
    "Cancelled",
    "Chunk",
    "ChunkStream",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "Denied",
    "GenerationParams",
    "GrpcClient",
    "HttpClient",
    "InvalidArgument",
    "NotFound",
    "ServerError",
    "SpeculationStats",
    "TandemError",
    "Timing",
    "Unavailable",
    "Unsupported",
]
