"""The command line in processes that kill themselves, each once at a chosen step.

    killed_worker.py FOLDER WHEN train …

WHEN is a JSON list. Each entry names a process, a seed (null for any seed) and the step before
which the process dies. A file in FOLDER records that it has died, so that it does not die again.
"""

import json
import os
import signal
import sys
from pathlib import Path

from roformer_lite.cli import main
from roformer_lite.training.callbacks import TrainingClock


def die(clock, args, state, control, **kwargs) -> None:
    for process, seed, step in json.loads(sys.argv[2]):
        marker = Path(sys.argv[1]) / f"killed-{process}-{step}"
        is_now = (
            args.process_index == process
            and seed in (None, args.seed)
            and state.global_step == step
        )
        if is_now and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    TrainingClock.on_step_begin = die
    sys.exit(main(sys.argv[3:]))
