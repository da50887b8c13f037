"""The GPU's kernels compile for a GPU, to its machine code; none is needed for that."""

import re
import subprocess

import pytest
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from tandem.gpu import tree_attention, verification
from tandem.verification.noise import FIRST, GOLDEN, SECOND, UNIT, signed

TARGETS = [GPUTarget("cuda", 80, 32), GPUTarget("cuda", 90, 32)]
SHARED_MEMORY = 99 << 10  # bytes that every GPU of these kinds has for a program


FEW_BYTES = 32  # that a thread may have no register for


def bytes_spilled(kernel, folder):
    """Of each thread, for want of registers."""
    code = folder / "kernel.cubin"
    code.write_bytes(kernel.asm["cubin"])
    command = [triton.knobs.nvidia.cuobjdump.path, "-res-usage", str(code)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    (spilled,) = re.findall(r"STACK:(\d+)", told.stdout + told.stderr)
    return int(spilled)


def compiled(kernel, types, constants, target, packed=(), **options):
    """As it is launched: pointers are to addresses that 16 divides, but for those that begin
    within another tensor (`packed`)."""
    signature = types | dict.fromkeys(constants, "constexpr")
    aligned = [name for name, kind in types.items() if kind[0] == "*" and name not in packed]
    aligned += [name for name in types if name == "stride"]  # of rows: heads of 16 or more
    attributes = {(kernel.arg_names.index(name),): [["tt.divisibility", 16]] for name in aligned}
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=target, options=options)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"sm_{target.arch}")
@pytest.mark.parametrize(
    ("dtype", "slots", "rows", "dim", "splits"),
    [
        ("bf16", 64, 64, 128, 8),
        ("fp16", 64, 64, 128, 8),
        ("fp32", 32, 64, 128, 8),
        ("bf16", 64, 16, 128, 16),
        ("bf16", 64, 32, 64, 1),
        ("bf16", 32, 64, 256, 2),
    ],
)
def test_attention(dtype, slots, rows, dim, splits, target, tmp_path):
    words = dict.fromkeys(("records", "tables", "tiles"), "*i32") | {"seen": "*i8"}
    types = {"query": f"*{dtype}", "cache": f"*{dtype}", "parts": "*fp32", "weights": "*fp32"}
    types |= words | {"scale": "fp32", "count": "i32", "stride": "i32"}
    constants = {"KV_HEADS": 8, "SHARED": 4, "DIM": dim, "PADDED": dim, "BLOCK": 16}
    constants |= {"ROWS": rows, "SLOTS": slots, "SPLITS": splits, "FIELDS": tree_attention.FIELDS}
    attend = compiled(tree_attention._attend, types, constants, target, packed=["records"])
    assert attend.asm["cubin"]
    assert attend.metadata.shared <= SHARED_MEMORY
    if dtype != "fp32" and dim <= 128:
        assert bytes_spilled(attend, tmp_path) <= FEW_BYTES
    types = {"parts": "*fp32", "weights": "*fp32", "out": f"*{dtype}", "count": "i32"}
    constants = {"HEADS": 32, "DIM": dim, "PADDED": dim}
    constants |= {"SPLITS": splits, "PADDED_SPLITS": splits}
    assert compiled(tree_attention._join, types, constants, target).asm["cubin"]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: f"sm_{target.arch}")
def test_verification(target):
    types = {"scored": "*fp32", "q": "*fp32", "plans": "*i32", "keys": "*i64"}
    types |= {"tokens": "*i64", "kept": "*i8", "seeds": "*i32", "vocab": "i32"}
    constants = {
        "TILE": verification.TILE,
        "KEYED": verification.KEYED,
        "RANDOM": verification.RANDOM,
        "GOLDEN": signed(GOLDEN),
        "FIRST": signed(FIRST),
        "SECOND": signed(SECOND),
        "UNIT": UNIT,
        "HALF_A_STEP": verification.HALF_A_STEP,
    }
    options = {"packed": ["seeds"], "num_warps": verification.WARPS}
    assert compiled(verification._judge, types, constants, target, **options).asm["cubin"]
