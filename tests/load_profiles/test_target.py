"""How a model drafts, by what its server says of its configuration."""

import json

import pytest

from tandem.errors import ConfigError
from tandem.serving import Endpoints
from tandem.triton_http import NO_ANSWER, OK, Answer
from tools.load_profiles import target as module
from tools.load_profiles.profile import ProfileError
from tools.load_profiles.target import Drafting, Target, drafting

MODEL = Target("my model", Endpoints("host:1", "host:2", "host:3"))


@pytest.fixture
def answered(monkeypatch):
    """How a model with these parameters drafts."""

    def run(**parameters):
        entries = {key: {"string_value": value} for key, value in parameters.items()}
        body = json.dumps({"name": "my model", "parameters": entries}).encode()
        answers = {("host:1", "/v2/models/my%20model/config"): Answer(OK, body)}
        monkeypatch.setattr(module, "ask", lambda *asked: answers[asked])
        return drafting(MODEL)

    return run


def test_by_its_parameters(answered):
    method = {"speculative_method": "suffix", "num_speculative_tokens": "8"}
    found = answered(model="target", draft_model="of another method", **method)
    assert found == Drafting("suffix", 8, False, True, True, {"speculative_method": "suffix"})
    fixed = answered(model="target", draft_model="draft", adaptive_speculation=" false ")
    assert fixed == Drafting("draft_model", 4, False, False, False, {"draft_model": "draft"})
    assert not answered(model="target", suffix_decoding_max_cached_requests="0", **method).remembers
    assert answered(model="target", speculative_method="none").most == 0
    assert answered(model="target").title(0) == "plain"


def test_of_a_tree_the_nodes(answered):
    head = {"model": "target", "speculative_method": "medusa", "draft_model": "medusa"}
    dynamic = answered(**head, speculative_tree="4", num_speculative_tokens="12")
    assert (dynamic.most, dynamic.tree, dynamic.title(12)) == (12, True, "up to 12 nodes")
    assert dynamic.parameters["speculative_tree"] == "4"
    shape = answered(**head, speculative_tree="[[0], [1], [0, 0]]", num_speculative_tokens="12")
    assert (shape.most, shape.tree) == (3, True)


def test_vllm_drafts_as_far_as_it_may(answered):
    assert not answered(engine="vllm", model="target", speculative_method="ngram").adaptive


def test_no_such_configuration(answered, monkeypatch):
    with pytest.raises(ConfigError, match="parameter 'colour'"):
        answered(model="target", colour="red")
    monkeypatch.setattr(module, "ask", lambda *asked: Answer(NO_ANSWER))
    with pytest.raises(ProfileError, match="correct MODEL and HTTP_PORT"):
        drafting(MODEL)
