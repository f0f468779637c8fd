"""Measures the peak memory of one contender, which needs a fresh process."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from .workload import Workload

PEAK = """
import json, sys
from benchmarks.processes import measure_peak
print(json.dumps(measure_peak(*json.loads(sys.argv[1]))))
"""


def python(code: str, *arguments: str) -> str:
    """The last line that `code` prints in a fresh process."""
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr[-2000:])
    return done.stdout.strip().splitlines()[-1]


def peak(task: str, work: Workload, name: str) -> dict[str, float]:
    """The peak memory of a contender of `task` in MiB, in all and in addition to the model, and the
    processor seconds of a run."""
    return json.loads(python(PEAK, json.dumps([task, {**asdict(work), "only": [name]}])))


def measure_peak(task: str, fields: dict[str, Any]) -> dict[str, float]:
    """Run a single contender three times in this process, and measure its peak memory and the time
    of the last two runs."""
    from .tasks import TASKS

    work = Workload(**fields)
    (contender,) = TASKS[task](work).contenders
    ends = [time.process_time()]

    def run() -> None:
        contender.run()
        ends.append(time.process_time())

    memory = peak_while_running(run, work.device)
    return {"seconds": (ends[-1] - ends[1]) / (len(ends) - 2), **memory}


def peak_while_running(run: Callable[[], object], device: str = "cpu") -> dict[str, float]:
    """The peak memory in MiB while `run` runs three times, in all and in addition to the memory
    before it."""
    import torch

    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    else:
        before = _resident("VmRSS")
        # Writing this number resets the peak, VmHWM.
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    for _ in range(3):
        run()
    most = peak_of_process(device)
    return {"peak_mib": most / 2**20, "above_model_mib": (most - before) / 2**20}


def peak_of_process(device: str) -> int:
    """The peak memory since the process began, in bytes; on `cuda`, the memory of the GPU."""
    import torch

    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return _resident("VmHWM")


def _resident(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field))
