"""Small indexed datasets written by Megatron's own code, for tests/runtime/data/indexed_*_test.cpp.

  python tests/reference/indexed_dataset_reference.py MEGATRON [GPT2]

MEGATRON is an unpacked megatron_core wheel (0.16.1 was used) and GPT2 a folder with
gpt2-vocab.json and gpt2-merges.txt. Needs numpy, torch and, with GPT2, tokenizers. Of Megatron only
megatron/core/datasets/indexed_dataset.py runs; what it imports for object storage is replaced by
empty modules. Writes tests/reference/indexed/*.{bin,idx} and the ids as .json.
"""

import importlib.util
import json
import os
import sys
import types
from pathlib import Path

import numpy
import torch

HERE = Path(__file__).parent
OUT = HERE / "indexed"
TEXTS = [
    "First Citizen: Before we proceed any further, hear me speak.\n",
    "",
    "Der Fluß fließt, 水は流れる, вода течёт 🌊",
    "def f(x):\n    return x ** 2\n",
]


def load_megatron(root):
    """megatron.core.datasets.indexed_dataset without the package's heavy imports."""

    def module(name, **attributes):
        found = sys.modules.setdefault(name, types.ModuleType(name))
        found.__path__ = []
        for key, value in attributes.items():
            setattr(found, key, value)

    class Feature:
        @staticmethod
        def is_enabled():
            return False

    nothing = {
        name: None
        for name in (
            "S3Config ObjectStorageConfig cache_index_file dataset_exists get_index_cache_path "
            "get_object_storage_access parse_s3_path"
        ).split()
    }
    for name in ("megatron", "megatron.core", "megatron.core.datasets"):
        module(name)
    module(
        "megatron.core.datasets.object_storage_utils",
        is_object_storage_path=lambda path: False,
        **nothing,
    )
    module("megatron.core.msc_utils", MultiStorageClientFeature=Feature)
    module("megatron.core.utils", log_single_rank=lambda *a, **k: None)
    name = "megatron.core.datasets.indexed_dataset"
    path = os.path.join(root, *name.split(".")) + ".py"
    spec = importlib.util.spec_from_file_location(name, path)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def write(megatron, name, dtype, documents, modes=None):
    """documents: a list of documents, each a list of sequences of ids."""
    builder = megatron.IndexedDatasetBuilder(
        str(OUT / f"{name}.bin"), dtype=dtype, multimodal=modes is not None
    )
    for i, document in enumerate(documents):
        flat = [token for sequence in document for token in sequence]
        lengths = [len(sequence) for sequence in document]
        builder.add_document(flat, lengths, None if modes is None else modes[i])
    builder.finalize(str(OUT / f"{name}.idx"))
    if documents:  # it cannot read back its own empty file
        back = megatron.IndexedDataset(str(OUT / name), multimodal=modes is not None)
        assert len(back) == sum(len(document) for document in documents)
    with open(OUT / f"{name}.json", "w") as file:
        json.dump({"dtype": numpy.dtype(dtype).name, "documents": documents}, file)
        file.write("\n")


def main():
    megatron = load_megatron(sys.argv[1])
    OUT.mkdir(exist_ok=True)
    plain = [[[1, 2, 3]], [[4], [5, 6]], [], [[65499, 0]]]
    write(megatron, "plain_u16", numpy.uint16, plain)
    write(megatron, "plain_i32", numpy.int32, [[[128000, 7]], [[2**31 - 1]], [[0]]])
    write(megatron, "plain_u8", numpy.uint8, [[[255, 0, 1]], [[2]]])
    write(megatron, "plain_i64", numpy.int64, [[[3, 2**31 - 1]]])
    write(megatron, "empty", numpy.uint16, [])
    write(megatron, "modes", numpy.uint16, [[[1, 2], [3]], [[4, 5]]], [[0, 1], [1]])
    # As merge_datasets does it.
    merged = megatron.IndexedDatasetBuilder(str(OUT / "merged.bin"), dtype=numpy.uint16)
    for name in ("plain_u16", "empty", "plain_u16"):
        merged.add_index(str(OUT / name))
    merged.finalize(str(OUT / "merged.idx"))
    if len(sys.argv) < 3:
        return
    from tokenizers import ByteLevelBPETokenizer

    folder = Path(sys.argv[2])
    tokenizer = ByteLevelBPETokenizer(
        str(folder / "gpt2-vocab.json"), str(folder / "gpt2-merges.txt")
    )
    eod = tokenizer.token_to_id("<|endoftext|>")
    # As preprocess_data.py does it with --append-eod: a text without tokens has no sequence.
    documents = []
    for text in TEXTS:
        ids = tokenizer.encode(text).ids
        documents.append([ids + [eod]] if ids else [])
    dtype = megatron.DType.optimal_dtype(tokenizer.get_vocab_size())
    write(megatron, "gpt2", dtype, documents)
    with open(OUT / "gpt2.jsonl", "w") as file:
        for text in TEXTS:
            file.write(json.dumps({"text": text}) + "\n")


if __name__ == "__main__":
    main()
