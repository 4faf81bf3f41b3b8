"""Stand-in for Hydra and for the CUDA device of minGPT-ddp: ``main`` with a YAML file, and ``a.b=c`` as arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml

_is_available = torch.accelerator.is_available
torch.accelerator.is_available = lambda: True
torch.accelerator.device_count = lambda: 8
torch.accelerator.current_accelerator = lambda check_available=False: None if check_available else torch.device("cuda")
torch.accelerator.set_device_index = lambda *_: None  # type: ignore[assignment]


def main(version_base: None, config_path: str, config_name: str) -> Callable[[Callable[[dict[str, Any]], None]], Any]:
    def decorated(training: Callable[[dict[str, Any]], None]) -> Callable[[], None]:
        def called() -> None:
            torch.accelerator.is_available = _is_available  # DataLoader asks before it pins memory.
            configuration = yaml.safe_load((Path(sys.argv[0]).parent / f"{config_name}.yaml").read_text())
            for override in sys.argv[1:]:
                name, _, value = override.partition("=")
                section, _, key = name.partition(".")
                configuration[section][key] = yaml.safe_load(value)
            training(configuration)

        return called

    return decorated
