"""What crosses into the kernels as it lies in memory: `structures.h`, field by field."""

from ctypes import POINTER, Structure, c_float, c_int32, c_void_p
from struct import Struct


class Matrix(Structure):
    """A linear layer: weight [rows, columns], packed, and bias [rows] or null; or an embedding, as
    it is stored. gated: the first half of the outputs are the gates of the others."""

    _fields_ = (
        ("weight", c_void_p),
        ("bias", c_void_p),
        ("rows", c_int32),
        ("columns", c_int32),
        ("bfloat", c_int32),
        ("gated", c_int32),
        ("lowest", c_int32),
    )


class Layer(Structure):
    """A decoder layer and its part of the KV cache."""

    _fields_ = (
        ("qkv", Matrix),
        ("out", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
        ("input_norm", c_void_p),
        ("post_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("cache", c_void_p),
    )


class Entry(Structure):
    """What a draft head makes of tokens and hidden states."""

    _fields_ = (
        ("fuse", Matrix),
        ("fuse_norm", c_void_p),
        ("fuse_parts", c_int32),
        ("token_norm", c_void_p),
        ("hidden_norm", c_void_p),
        ("project", Matrix),
        ("hidden_first", c_int32),
        ("blind_start", c_int32),
        ("normed_residual", c_int32),
        ("norm_output", c_int32),
    )


class Model(Structure):
    """A decoder, or the layers of a draft head."""

    _fields_ = (
        ("layers", c_int32),
        ("hidden", c_int32),
        ("heads", c_int32),
        ("kv_heads", c_int32),
        ("head_dim", c_int32),
        ("inner", c_int32),
        ("block_size", c_int32),
        ("threads", c_int32),
        ("bfloat", c_int32),
        ("epsilon", c_float),
        ("layer", POINTER(Layer)),
        ("embedding", Matrix),
        ("final_norm", c_void_p),
        ("cos", c_void_p),
        ("sin", c_void_p),
        ("head", Matrix),
        ("entry", Entry),
    )


STRETCH = Struct("Pq")
"""Of memory: address, and how many bytes."""
LIMITS = Struct("fffi")
"""How a row's logits become scores: temperature, min_p, top_p, top_k."""
ROW_PLAN = Struct("iiiQ")
"""`verification.judging.RowPlan`: noise, token, q_row, key."""
TEXT = Struct("iiifff")
"""What penalties see: begin, prompt, length; repetition, frequency, presence."""
PLACE = Struct(f"{TEXT.format}ii")
"""A row behind a text and drafted tokens: TEXT, drafted, count."""
SHARES = 16
"""Steps of the share of the likeliest token, by which chances are told apart."""
