"""The elastic contract: a job whose workers fail in the first two generations and end well in the
third, each generation with the numbers that it should see."""
import os
import sys
import time

import torch
import torch.distributed as dist

count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("gloo")
seen = torch.tensor([count])
dist.all_reduce(seen)
assert seen.item() == count * dist.get_world_size(), "generations are mixed"
if dist.get_rank() == 0:
    print("generation", count, "of", os.environ["TORCHELASTIC_MAX_RESTARTS"], "with",
          dist.get_world_size(), flush=True)
if count < 2:
    if dist.get_rank() == 1:
        sys.exit(5)
    time.sleep(600)
dist.barrier()
