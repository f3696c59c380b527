"""What Megatron's tools/preprocess_data.py does, for tests/bench/tokenize_corpus.sh: a pool of
processes parses and encodes lines, this one writes with Megatron's own builder.

  preprocess.py MEGATRON GPT2_FOLDER INPUT.jsonl PREFIX WORKERS
"""

import sys
from pathlib import Path

# Instead of this folder, whose tokenize.py would stand for Python's own.
sys.path[0] = str(Path(__file__).parents[2] / "reference")

import json  # noqa: E402
import multiprocessing  # noqa: E402

from tokenizers import ByteLevelBPETokenizer  # noqa: E402
from indexed_dataset_reference import load_megatron  # noqa: E402

tokenizer = None


def start(folder):
    global tokenizer
    tokenizer = ByteLevelBPETokenizer(f"{folder}/gpt2-vocab.json", f"{folder}/gpt2-merges.txt")


def encode(line):
    ids = tokenizer.encode(json.loads(line)["text"]).ids
    return ids + [tokenizer.token_to_id("<|endoftext|>")] if ids else ids


def main():
    root, folder, source, prefix, workers = sys.argv[1:]
    megatron = load_megatron(root)
    start(folder)
    dtype = megatron.DType.optimal_dtype(tokenizer.get_vocab_size())
    builder = megatron.IndexedDatasetBuilder(prefix + ".bin", dtype=dtype)
    with multiprocessing.Pool(int(workers), start, (folder,)) as pool, open(source) as lines:
        for ids in pool.imap(encode, lines, 32):
            builder.add_document(ids, [len(ids)] if ids else [])
    builder.finalize(prefix + ".idx")


if __name__ == "__main__":
    main()
