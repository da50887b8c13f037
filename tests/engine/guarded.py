"""`python -m tests.engine.guarded FOLDER`: passes by kernels with nothing behind their memory, and
no numbers in it.

Whatever is read or written there ends the process, by whichever instruction. Each pass is the first
one of its runner, so that no room is left over from a larger one, nor anything but NaN.
"""

import sys
from itertools import product
from pathlib import Path

import torch

from tandem import Engine, EngineConfig, SamplingParams
from tandem.attention.plan import Query
from tandem.cpu.library import load_kernels
from tandem.cpu.linear import KernelLinear
from tandem.models.config import read_model_config
from tandem.runners.model_runner import ModelRunner
from tests.engine import test_cpu_kernels as kernels
from tests.engine.checkpoints import make_checkpoint
from tests.engine.conftest import ENGINE_DEFAULTS
from tests.engine.heads import drafting, make_head
from tests.engine.kernels import bent

PLACE = 'extern "C" {\nvoid* tandem_space()'
GUARDS = """
#include <sys/mman.h>
#include <cstring>
#include <new>

__attribute__((visibility("hidden"))) void* operator new(size_t size) {
  constexpr size_t kPage = 4096, kNumber = 16;
  const size_t taken = (size + kNumber - 1) / kNumber * kNumber;
  const size_t pages = (taken + kPage - 1) / kPage;
  char* memory = static_cast<char*>(mmap(nullptr, (pages + 1) * kPage, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::memset(memory, 0xff, pages * kPage);
  mprotect(memory + pages * kPage, kPage, PROT_NONE);
  return memory + pages * kPage - taken;
}
// (Aligned as numbers are, however it is asked for: instructions take that too.)
__attribute__((visibility("hidden"))) void* operator new(size_t size, std::align_val_t) {
  return operator new(size);
}
__attribute__((visibility("hidden"))) void operator delete(void*) noexcept {}
__attribute__((visibility("hidden"))) void operator delete(void*, std::align_val_t) noexcept {}
__attribute__((visibility("hidden"))) void operator delete(void*, size_t,
                                                           std::align_val_t) noexcept {}
__attribute__((visibility("hidden"))) void operator delete(void*, size_t) noexcept {}
"""
DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 8, 15, 17, 33)


def main(folder: Path) -> None:
    with bent(folder / "source", "kernels.cpp", PLACE, GUARDS + PLACE):
        for shape, (family, overrides) in kernels.SHAPES.items():
            make_checkpoint(folder / shape, family, seed=3, **overrides)
            for dtype, threads, rows in product(DTYPES, (1, 2), ROWS):
                read_and_draft(folder / shape, dtype, threads, rows)
        for dtype, rows, gated in product(DTYPES, ROWS, (False, True)):
            weight = torch.ones(74, 35, dtype=dtype)
            linear = KernelLinear(load_kernels(), weight, None, None, gated)
            assert (linear(torch.ones(rows, 35)) == 35).all()
        for rows, gated in product(ROWS, (False, True)):
            if load_kernels().tandem_eights():
                weight = torch.ones(74, 35, dtype=torch.bfloat16)
                linear = KernelLinear(load_kernels(), weight, None, None, gated, eights=True)
                assert (linear(torch.ones(rows, 35)) == 35).all()
        generate_with_heads(folder)
    print("all within")


def read_and_draft(folder: Path, dtype: torch.dtype, threads: int, rows: int) -> None:
    torch.set_num_threads(threads)
    runner = ModelRunner(folder, read_model_config(folder), dtype, torch.device("cpu"))
    runner.allocate(num_blocks=12, block_size=16)
    assert runner.by_kernels is not None
    read = Query(kernels.BLOCKS, 0, rows)
    assert runner.forward(kernels.TEXT[:rows], [read]).logits.isfinite().all()
    draft = Query(kernels.BLOCKS, rows, len(kernels.TREE), kernels.TREE)
    assert runner.forward(kernels.NODES, [draft]).logits.isfinite().all()


def generate_with_heads(folder: Path) -> None:
    """All that draft heads read, and prompts of which the ends alone go through the last layer."""
    target = make_checkpoint(folder / "target", seed=1)
    params = SamplingParams(temperature=0, max_tokens=6)
    for method in ("eagle", "eagle31", "peagle", "mtp"):
        chosen = drafting(method, make_head(folder / method, method)) | {"model": target}
        for dtype in ("float32", "bfloat16"):
            with Engine(EngineConfig(**ENGINE_DEFAULTS, **chosen, dtype=dtype)) as engine:
                outputs = engine.generate([[1, 2, 3], [4] * 19], params)
                assert sum(output.stats.drafted for output in outputs)
                for runner in (engine.target, engine.proposer.guesser.runner):
                    assert runner.by_kernels is not None
                    assert runner.cache.data.isfinite().all()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
