#!/usr/bin/env python3
"""The peers of tests/bench/tokenize.cpp, on one core:

  TOKENIZERS_PARALLELISM=true taskset -c 0 python3 tokenize.py TOKENIZER DOCUMENTS [repeats]

TOKENIZER: a tokenizer.json, for `tokenizers` (encode_batch, its fastest call; pinned to one core its
threads share that core; the time is the processor's, of all threads), or VOCAB.json+MERGES.txt, for `tokenizers` and `tiktoken`. DOCUMENTS as
tests/bench/tokenize.cpp reads them. Needs: pip install tokenizers tiktoken.
"""
import os
import struct
import sys
import time

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""


def documents(path):
    with open(path, "rb") as f:
        data = f.read()
    found, at = [], 0
    while at + 4 <= len(data):
        (n,) = struct.unpack_from("<I", data, at)
        if n > len(data) - at - 4:
            break
        found.append(data[at + 4:at + 4 + n])
        at += 4 + n
    return found if at == len(data) else [data]


def main():
    name, path = sys.argv[1:3]
    repeats = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    raw = documents(path)
    texts = [d.decode("utf-8", errors="replace") for d in raw]
    size = sum(map(len, raw))

    def measure(what, call):
        best = 1e30
        for _ in range(repeats):
            begin = time.process_time()
            tokens = call()
            best = min(best, time.process_time() - begin)
        print(f"{what}: {size / best / 1e6:.1f} MB/s  {tokens / best / 1e6:.2f} M tokens/s "
              f"on cores {sorted(os.sched_getaffinity(0))}", flush=True)

    import tokenizers
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
    if "+" in name:
        import tiktoken
        from tiktoken.load import data_gym_to_mergeable_bpe_ranks
        vocab, merges = name.split("+")
        tokenizer = Tokenizer(models.BPE.from_file(vocab, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
        encoding = tiktoken.Encoding(
            "gpt2", pat_str=GPT2, special_tokens={"<|endoftext|>": 50256},
            mergeable_ranks=data_gym_to_mergeable_bpe_ranks(merges, vocab))
        measure(f"tiktoken {tiktoken.__version__} encode_ordinary",
                lambda: sum(len(encoding.encode_ordinary(t)) for t in texts))
    else:
        tokenizer = Tokenizer.from_file(name)
    tokenizer.encode_special_tokens = True
    measure(f"tokenizers {tokenizers.__version__} encode_batch",
            lambda: sum(len(e.ids) for e in tokenizer.encode_batch(texts, add_special_tokens=False)))


if __name__ == "__main__":
    main()
