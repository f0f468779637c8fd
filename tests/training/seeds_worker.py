"""`seeds_worker.py SEED STEP train …`: the command line, which kills itself before this step of this seed."""

import os
import signal
import sys

from roformer_lite.cli import main
from roformer_lite.train.callbacks import TrainingClock


def die(clock, args, state, control, **kwargs) -> None:
    if (args.seed, state.global_step) == (int(sys.argv[1]), int(sys.argv[2])):
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    TrainingClock.on_step_begin = die
    sys.exit(main(sys.argv[3:]))
