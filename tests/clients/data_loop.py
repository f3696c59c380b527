"""accelerate's own test of the distributed data loop, without its cases of joining uneven inputs:
those are for GPUs ("Joining uneven inputs is only supported for multi-GPU training") and hang on
CPUs under every launcher, accelerate's own too.

The loaders' workers come from a process that has no threads: where one of a rank's own threads
ends while it forks, Python before 3.12 may wait for ever in the child (python/cpython#112275; one
run in a hundred here)."""
import multiprocessing

from accelerate.test_utils.scripts import test_distributed_data_loop as loop

if __name__ == "__main__":
    # By force: where two ranks import transformers for the first time, one may move its old cache,
    # whose progress bar has chosen a method by then.
    multiprocessing.set_start_method("forkserver", force=True)
    multiprocessing.set_forkserver_preload([loop.__name__])
    for name in dir(loop):
        if name.startswith("test_") and "join" in name and "non_ddp" not in name:
            setattr(loop, name, lambda: None)
    loop.main()
