"""Weights of 8 bits for what drafts: numbers, who has them, and that no text changes."""

import pytest
import torch

from tandem import SamplingParams
from tandem.cpu.linear import KernelLinear, lowest_exponent
from tandem.models.layers import Linear
from tests.engine.heads import drafting, make_head
from tests.engine.kernels import OLDER, TWOS, WIDE, compiled_for

PROMPTS = [[5, 6, 7, 8, 9, 10, 11, 12, 13, 14], [40, 41, 42], [3] * 20]
BFLOAT = {"dtype": "bfloat16"}


@pytest.fixture
def kernels():
    with compiled_for(TWOS) as found:
        assert found.tandem_eights()
        yield found


def rounded(weight):
    """By the format's definition: of all numbers that 8 bits stand for the nearest, of two as near
    the one whose last bit is 0."""
    codes = torch.arange(128)
    exponents = (codes >> 3) + lowest_exponent(weight) - 127
    numbers = (1 + (codes & 7) / 8).double() * 2.0 ** exponents.double()
    size = weight.double().abs().unsqueeze(-1)
    near = (numbers - size).abs()
    best = near.amin(-1, keepdim=True)
    tied = near == best
    even = torch.where(tied & (codes % 2 == 0), codes, 1000).amin(-1)
    code = torch.where(even < 1000, even, torch.where(tied, codes, 1000).amin(-1))
    return torch.where(weight.signbit(), -1.0, 1.0) * numbers[code].float()


def drawn(rows, columns, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (0.05 * torch.randn(rows, columns, generator=generator)).bfloat16()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("rows, columns", [(2, 5), (34, 35), (70, 64), (130, 31)])
@pytest.mark.parametrize("batch", [1, 2, 7, 11, 12, 13, 14, 24, 25, 40])
def test_a_layer_is_to_the_last_bit_that_of_its_rounded_weights(
    kernels, rows, columns, gated, batch
):
    weight = drawn(rows, columns)
    bias = torch.randn(rows, generator=torch.Generator().manual_seed(1))
    x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(2))
    small = KernelLinear(kernels, weight, bias, gated=gated, eights=True)
    large = KernelLinear(kernels, rounded(weight).bfloat16(), bias, gated=gated)
    assert torch.equal(small(x), large(x))
    assert 2 * small.memory.numel() == large.memory.numel()


@pytest.mark.parametrize("greatest", [1e-30, 1e-3, 1.0, 1.97, 3e38])
def test_weights_lose_a_sixteenth_of_themselves_at_most(kernels, greatest):
    """As far as they are not too small beside the greatest."""
    weight = (greatest * 2.0 ** -torch.linspace(0, 14, 400)).bfloat16().view(20, 20)
    weight[::2] *= -1
    found = KernelLinear(kernels, weight, None, eights=True)(torch.eye(20)).T
    assert ((found - weight.float()).abs() <= weight.float().abs() / 16).all()


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-40])
def test_where_there_is_nothing_next_to_nothing_is_left(kernels, value):
    weight = torch.full((40, 40), value).bfloat16()
    found = KernelLinear(kernels, weight, None, eights=True)(torch.ones(3, 40))
    assert found.abs().max() < 1e-30


def test_what_is_not_finite_spoils_no_other_weight(kernels):
    weight = 100 * drawn(40, 40)
    weight[3, 5], weight[4, 6] = float("inf"), float("nan")
    spoilt = KernelLinear(kernels, weight, None, eights=True)(torch.eye(40)).T
    weight[3, 5] = weight[4, 6] = 0.0
    clean = KernelLinear(kernels, weight, None, eights=True)(torch.eye(40)).T
    others = torch.ones(40, 40, dtype=torch.bool)
    others[3, 5] = others[4, 6] = False
    assert torch.equal(spoilt[others], clean[others])


def test_zeros_beside_others_are_next_to_zero(kernels):
    weight = torch.zeros(8, 8).bfloat16()
    weight[0, 0] = 4.0
    found = KernelLinear(kernels, weight, None, eights=True)(torch.eye(8)).T
    assert found[0, 0] == 4
    assert found.flatten()[1:].abs().max() <= 4 * 2.0**-15


@pytest.mark.parametrize("processor", [OLDER, WIDE])
def test_elsewhere_weights_stay_as_they_are(engine, good_draft, processor):
    with compiled_for(processor) as kernels:
        assert not kernels.tandem_eights()
        one = engine(draft_model=good_draft, **BFLOAT)
    assert lowest_of(one.proposer.guesser.runner.model) == {0}


# -- who has them ------------------------------------------------------------------------------


def lowest_of(model):
    """Exponents of all linear layers' weights of 8 bits; 0: of 16."""
    layers = [one for one in model.modules() if isinstance(one, Linear)]
    assert layers
    return {one.kernel.matrix.lowest for one in layers}


@pytest.mark.parametrize("given", [{}, {"draft_weight_bits": 8}])
def test_a_draft_model_has_them_and_its_target_has_not(kernels, engine, good_draft, given):
    one = engine(draft_model=good_draft, **BFLOAT, **given)
    assert all(lowest_of(one.proposer.guesser.runner.model))
    assert lowest_of(one.target.model) == {0}


@pytest.mark.parametrize("given", [{"draft_weight_bits": 16, **BFLOAT}, {"dtype": "float32"}])
def test_a_draft_may_have_16_and_of_floats_there_are_no_others(kernels, engine, good_draft, given):
    one = engine(draft_model=good_draft, **given)
    assert lowest_of(one.proposer.guesser.runner.model) == {0}


def layers_of(guesser):
    """A head's, and what it shares with the target."""
    parts = [guesser, *vars(guesser).values(), *vars(getattr(guesser, "runner", guesser)).values()]
    found = [one for one in parts if isinstance(one, torch.nn.Module)]
    return [layer for one in found for layer in one.modules() if isinstance(layer, Linear)]


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "mtp", "mlp_speculator"])
def test_a_heads_own_weights_have_them_and_what_is_the_targets_has_not(
    kernels, engine, tmp_path, method
):
    head = make_head(tmp_path, method)
    one = engine(**drafting(method, head), **BFLOAT, num_speculative_tokens=2)
    assert lowest_of(one.target.model) == {0}
    layers = layers_of(one.proposer.guesser)
    targets = {id(layer) for layer in one.target.model.modules()}
    assert any(layer.kernel.matrix.lowest for layer in layers)
    assert all(bool(layer.kernel.matrix.lowest) != (id(layer) in targets) for layer in layers)


def test_of_a_target_on_ranks_nothing_has_them(kernels, engine, tmp_path):
    head = make_head(tmp_path, "eagle")
    one = engine(**drafting("eagle", head), **BFLOAT, tensor_parallel_size=2)
    assert {layer.kernel.matrix.lowest for layer in layers_of(one.proposer.guesser)} == {0}


# -- nothing changes ---------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 7}])
@pytest.mark.parametrize("tree", [None, 2])
def test_the_text_is_the_targets_own(kernels, engine, good_draft, sampling, tree):
    params = SamplingParams(max_tokens=40, **sampling)
    plain = engine(speculative_method="none", **BFLOAT).generate(PROMPTS, params)
    found = engine(draft_model=good_draft, speculative_tree=tree, **BFLOAT).generate(
        PROMPTS, params
    )
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    assert sum(one.stats.accepted for one in found) > 20


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 7}])
@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa", "mtp", "mlp_speculator"])
def test_with_heads_too(kernels, engine, tmp_path, sampling, method):
    params = SamplingParams(max_tokens=24, **sampling)
    plain = engine(speculative_method="none", **BFLOAT).generate(PROMPTS, params)
    head = make_head(tmp_path, method)
    one = engine(**drafting(method, head), **BFLOAT, num_speculative_tokens=2)
    found = one.generate(PROMPTS, params)
    assert [one.token_ids for one in found] == [one.token_ids for one in plain]
    assert sum(one.stats.drafted for one in found) > 20


def test_as_much_is_kept(kernels, engine, good_draft):
    params = SamplingParams(max_tokens=60, temperature=0)
    rates = []
    for bits in (16, 8):
        made = engine(draft_model=good_draft, draft_weight_bits=bits, **BFLOAT)
        stats = [one.stats for one in made.generate(PROMPTS, params)]
        rates.append(sum(one.accepted for one in stats) / sum(one.drafted for one in stats))
    assert rates[0] > 0.3
    assert rates[1] > rates[0] - 0.1
