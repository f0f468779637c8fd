"""`dying_worker.py FOLDER train …`: the command line, in which two workers kill themselves, each once.

Rank 1 dies before step 7 and rank 0 before step 17; a file in FOLDER tells that it has happened.
"""

import os
import signal
import sys
from pathlib import Path

from roformer_lite.cli import main
from roformer_lite.train.callbacks import TrainingClock

LAST_STEPS = {1: 7, 0: 17}


def die(clock, args, state, control, **kwargs) -> None:
    told = Path(sys.argv[1]) / f"killed-{args.process_index}"
    if state.global_step == LAST_STEPS[args.process_index] and not told.exists():
        told.touch()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    TrainingClock.on_step_begin = die
    sys.exit(main(sys.argv[2:]))
