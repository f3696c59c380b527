"""A worker whose exception goes through torch's own @record into TORCHELASTIC_ERROR_FILE, and whose
stderr ends with lines that say nothing."""
import atexit
import os
import sys
import time

from torch.distributed.elastic.multiprocessing.errors import record


def chatter():
    for line in range(40):
        print("shutting down", line, file=sys.stderr)


@record
def main():
    if os.environ["RANK"] == "1":
        atexit.register(chatter)
        raise RuntimeError("the tensor was on fire")
    time.sleep(600)


main()
