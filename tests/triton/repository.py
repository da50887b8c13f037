"""A model repository around the served model: small queues, a warm-up, an ensemble."""

import struct
from pathlib import Path

from tests.conftest import STEADY

MODEL_REPOSITORY = Path(__file__).parents[2] / "model_repository"
WARM_UP_PROMPT = b"import os\n"

# One request runs, one waits: what a client that leaves gives free is seen at once.
SMALL = STEADY | {"max_num_seqs": "1", "max_queue_size": "1", "log_level": "debug"}
SMALL |= {"drain_timeout": "1000"}  # whatever a busy machine makes of a request's time

EAGLE3 = {
    "speculative_method": "eagle3",
    "draft_model": str(MODEL_REPOSITORY / "tandem" / "1" / "eagle3"),
    "num_speculative_tokens": "1",
}

WARM_UP = """
model_warmup {
  name: "prompt"
  batch_size: 1
  inputs {
    key: "text_input"
    value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "prompt" }
  }
}
"""

PIPELINE = """
platform: "ensemble"
input [
  { name: "PROMPT" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "PARAMETERS" data_type: TYPE_STRING dims: [ 1 ] },
  { name: "STREAM" data_type: TYPE_BOOL dims: [ 1 ] }
]
output [ { name: "TEXT" data_type: TYPE_STRING dims: [ -1 ] } ]
ensemble_scheduling {
  step [ {
    model_name: "tandem"
    model_version: -1
    input_map { key: "text_input" value: "PROMPT" }
    input_map { key: "sampling_parameters" value: "PARAMETERS" }
    input_map { key: "stream" value: "STREAM" }
    output_map { key: "text_output" value: "TEXT" }
  } ]
}
"""


def build(folder: Path, model: Path) -> Path:
    """Write the repository: `model` as `tandem` with small queues and a warm-up, and `pipeline`."""
    _write_tandem(folder / "tandem", model)
    (folder / "pipeline" / "1").mkdir(parents=True)
    (folder / "pipeline" / "config.pbtxt").write_text(PIPELINE)
    return folder


def with_parameters(config: str, values: dict[str, str]) -> str:
    """The text of a config.pbtxt with other values for some of its parameters: the last entry of a
    key wins."""
    entries = [
        f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
        for key, value in values.items()
    ]
    return "\n".join([config, *entries, ""])


def _write_tandem(folder: Path, original: Path) -> None:
    (folder / "warmup").mkdir(parents=True)
    (folder / "1").symlink_to(original / "1")
    config = with_parameters((original / "config.pbtxt").read_text(), SMALL)
    (folder / "config.pbtxt").write_text(config + WARM_UP)
    encoded = struct.pack("<I", len(WARM_UP_PROMPT)) + WARM_UP_PROMPT
    (folder / "warmup" / "prompt").write_bytes(encoded)
