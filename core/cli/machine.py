"""The machine and the interpreter, as far as they can be told without torch."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which

from ..registry.installation import installation

LIBRARIES = ("torch", "transformers", "safetensors", "tokenizers", "triton", "gguf")
"""What archzoo runs on; the last two are optional."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"

_DRIVER = Path("/proc/driver/nvidia/gpus")
_PATIENCE = 5.0  # seconds for nvidia-smi, which hangs when the driver does


@dataclass(frozen=True)
class Devices:
    """Accelerators.

    Args:
        found: their names.
        how: where that was read.
    """

    found: tuple[str, ...]
    how: str


@dataclass(frozen=True)
class Machine:
    """What archzoo runs on.

    Args:
        python: version of the interpreter.
        executable: the interpreter.
        platform: operating system and processor.
        libraries: name -> installed version, empty when it is not installed.
        cpus: of the machine; 0 when nothing says.
        usable: CPUs that this process may use.
        threads: variables that limit threads -> value, empty when unset.
        devices: accelerators.
        visible: ``CUDA_VISIBLE_DEVICES``; None when unset.
    """

    python: str
    executable: str
    platform: str
    libraries: Mapping[str, str]
    cpus: int
    usable: int
    threads: Mapping[str, str]
    devices: Devices
    visible: str | None


def look() -> Machine:
    """The machine as it is now."""
    cpus = os.cpu_count() or 0
    return Machine(
        python=platform.python_version(),
        executable=sys.executable,
        platform=f"{platform.system()} {platform.release()} {platform.machine()}".strip(),
        libraries={name: _installed(name) for name in LIBRARIES},
        cpus=cpus,
        usable=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cpus,
        threads={name: os.environ.get(name, "") for name in THREAD_VARIABLES},
        devices=see_devices(),
        visible=os.environ.get(VISIBLE_VARIABLE),
    )


def see_devices(driver: Path = _DRIVER) -> Devices:
    """NVIDIA devices by what the driver lists, else by nvidia-smi.

    Args:
        driver: where the driver lists its devices.
    """
    listed = tuple(_model(file) for file in sorted(driver.glob("*/information")))
    if listed:
        return Devices(listed, str(driver))
    tool = which("nvidia-smi")
    if tool is None:
        return Devices((), f"neither {driver} nor nvidia-smi is there")
    try:
        done = subprocess.run(
            [tool, "-L"], capture_output=True, text=True, errors="replace", timeout=_PATIENCE
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Devices((), f"nvidia-smi -L failed: {type(error).__name__}")
    lines = [line.strip() for line in done.stdout.splitlines() if line.startswith("GPU ")]
    if done.returncode:
        return Devices((), f"nvidia-smi -L failed with exit code {done.returncode}")
    return Devices(tuple(lines), "nvidia-smi -L")


def _model(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"a device that cannot be read ({error.strerror})"
    named = [
        value.strip()
        for name, _, value in (line.partition(":") for line in lines)
        if name.strip() == "Model"
    ]
    return named[0] if named else file.parent.name


def _installed(name: str) -> str:
    """Version of a distribution, from its metadata."""
    found = installation(tuple(sys.path)).installed(name)
    return found.version if found else ""
