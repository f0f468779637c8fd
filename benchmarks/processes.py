"""The settings of a process that measures, and its peak memory, which needs a fresh process."""

import subprocess
import sys
import warnings
from collections.abc import Callable

import datasets
import torch
import transformers


def set_up() -> None:
    """Compute with one thread, and print neither warnings nor progress."""
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    torch.set_num_threads(1)


def python(code: str, *arguments: str) -> str:
    """The last line that `code` prints in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout.strip().splitlines()[-1]


def peak_above_model(run: Callable[[], object]) -> float:
    """The peak memory in MiB while `run` runs three times, in addition to the memory before it."""
    before = resident("VmRSS")
    # Writing this number resets the peak, VmHWM.
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    for _ in range(3):
        run()
    return resident("VmHWM") - before


def resident(field: str) -> float:
    """The memory of this process in MiB: now (VmRSS), or at its peak (VmHWM)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(field))
