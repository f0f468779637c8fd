"""`interrupted_worker.py STEP train …`: the command line, interrupted before this step as if by Ctrl+C."""

import sys

from roformer_lite.cli import main
from roformer_lite.training.clock import TrainingClock


def interrupt(clock, args, state, control, **kwargs) -> None:
    if state.global_step == int(sys.argv[1]):
        raise KeyboardInterrupt


if __name__ == "__main__":
    TrainingClock.on_step_begin = interrupt
    sys.exit(0 if main(sys.argv[2:]) == 130 else 1)
