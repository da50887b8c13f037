"""The command `tandem ranks`: who holds what, and how often ranks must talk."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table

from tandem.assembly import check_ranks, choose_dtype, read_draft_config
from tandem.config import EngineConfig
from tandem.models.config import ModelConfig, read_model_config
from tandem.runners.commands import Role
from tandem.runners.footprint import Footprint, footprints
from tandem.runners.placement import place
from tandem.serving.model_config import read_model


def show(folder: Path, settings: dict[str, str], console: Console) -> None:
    """Prints the table for a model of a repository. Raises `ConfigError`, `CheckpointError`."""
    served = read_model(folder)
    parameters = served.parameters | settings
    config = EngineConfig.from_triton_parameters(parameters, served.version_folder)
    table = Table(title=f"{folder.name}: {describe(config)}")
    for heading in ("rank", "device", "model"):
        table.add_column(heading)
    for heading in ("weights, MB", f"KV, bytes a {config.block_size}-token block"):
        table.add_column(heading, justify="right")
    table.add_column("collective calls a step", justify="right")
    for line in of(config):
        table.add_row(
            str(line.rank),
            line.device,
            line.role,
            f"{line.weights / 1e6:.1f}",
            f"{line.kv_block:,}",
            str(line.collectives),
        )
    console.print(table)


def of(config: EngineConfig) -> list[Footprint]:
    """The footprints of a configuration."""
    model = read_model_config(config.model)
    draft = read_draft_config(config) if config.method == "draft_model" else None
    check_ranks(config, model, draft)
    models: dict[Role, ModelConfig] = {"target": model}
    if draft is not None:
        models["draft"] = draft
    placement = place(config)
    return footprints(placement, models, choose_dtype(config, model, placement), config.block_size)


def describe(config: EngineConfig) -> str:
    """Sizes and placement in words."""
    sizes = f"target on {config.tensor_parallel_size}"
    if config.method != "draft_model":
        return sizes
    own = "of its own" if config.draft_devices else "shared with the target"
    return f"{sizes}, draft on {config.draft_tensor_parallel_size} {own}"
