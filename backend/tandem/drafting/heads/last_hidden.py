"""What Medusa and MLP speculator share: the target's last hidden state is all they take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tandem.drafting import Computed
from tandem.request import Notes, Request
from tandem.scheduler import Decode


class LastHidden(nn.Module):
    """Keeps the hidden state at the end of each text. It has no KV, and nothing to take back."""

    taps: tuple[int, ...] | None = ()
    reads_all = False
    at_once = None

    def __init__(self) -> None:
        super().__init__()
        self._hidden = Notes[Tensor]()

    def absorb(self, computed: Sequence[Computed], features: Tensor) -> None:
        for one in computed:
            self._hidden[one.request] = features[one.rows[-1]].clone()

    def ready(self, decodes: Sequence[Decode]) -> list[int]:
        return list(range(len(decodes)))

    def keep(self, request: Request, nodes: int) -> None:
        pass

    def hidden(self, decodes: Sequence[Decode]) -> Tensor:
        """[B, hidden]"""
        return torch.stack([self._hidden[decode.request] for decode in decodes])
