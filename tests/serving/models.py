"""Python models of a few lines, written into a temporary repository."""

from pathlib import Path

CONFIG = """
backend: "python"
max_batch_size: 0
model_transaction_policy { decoupled: true }
input [ { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""

NOT_DECOUPLED = CONFIG.replace("decoupled: true", "decoupled: false")

ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        print("echo says hello", flush=True)

    def execute(self, requests):
        for request in requests:
            text = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()
            response = pb_utils.InferenceResponse([pb_utils.Tensor("text_output", text)])
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            request.get_response_sender().send(response, flags=final)
"""

# For a model that is not decoupled: the number that it is sent, as often as it says.
WHOLE = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        texts = [
            pb_utils.get_input_tensor_by_name(one, "text_input").as_numpy() for one in requests
        ]
        outputs = [pb_utils.Tensor("text_output", np.repeat(one, int(one[0]))) for one in texts]
        return [pb_utils.InferenceResponse([one]) for one in outputs]
"""

# Answers the number of seconds that it is sent, after so long.
SLOW = ECHO.replace("response = ", "import time; time.sleep(float(text[0])); response = ")

# Answers what it is sent but for "never", which it forgets.
FORGETS = ECHO.replace(
    "            response = ",
    "            if text[0] == b'never': continue\n            response = ",
).replace("for request in requests:", "self.kept = requests\n        for request in requests:")

# Starts a process in a session of its own that outlives any signal to the server's group.
STARTS_A_CHILD = """
import subprocess
import sys


class TritonPythonModel:
    def initialize(self, args):
        script = "from signal import *; signal(SIGTERM, SIG_IGN); import time; time.sleep(99)"
        subprocess.Popen([sys.executable, "-c", script], start_new_session=True)

    def execute(self, requests):
        pass
"""

# Fails as often as its file says, as one does whose process stood still.
STOOD_STILL = """
from pathlib import Path


class TritonPythonModel:
    def initialize(self, args):
        left = Path(args["model_repository"]) / "left"
        count = int(left.read_text())
        left.write_text(str(count - 1))
        if count:
            raise ValueError("its process did not run for 2.0 s")

    def execute(self, requests):
        pass
"""

# Does not come to its end, instead.
HANGS = STOOD_STILL.replace("raise ValueError(", "import time; print(").replace(
    '2.0 s")', '2.0 s"); time.sleep(999)'
)

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("folder 'nowhere' holds no config.json")
"""


def write_model(repository: Path, name: str, code: str, config: str = CONFIG) -> None:
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(code)
    (repository / name / "config.pbtxt").write_text(config)
