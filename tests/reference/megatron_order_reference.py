#!/usr/bin/env python3
"""Sample orders of Megatron-LM's own dataset code, for tests/runtime/data/megatron_order_test.cpp.

Needs numpy and the wheel of megatron_core (0.16.1; it has the compiled helpers for CPython 3.11):

  unzip -q megatron_core-*.whl -d mcore
  python3 tests/reference/megatron_order_reference.py mcore tests/reference/megatron_order.json

What the dataset code imports besides (torch and the rest of Megatron) is replaced by empty modules:
the indices are numpy's work. torch itself, where there is one, gives the `randperm` cases.
"""
import importlib.util
import json
import math
import os
import sys
import types

import numpy

root = sys.argv[1]


class Anything:
    def __getattr__(self, name):
        return Anything()

    def __call__(self, *args, **kwargs):
        return Anything()

    def __mro_entries__(self, bases):
        return (object,)


def stub(name):
    module = types.ModuleType(name)
    module.__getattr__ = lambda attribute: Anything()
    sys.modules[name] = module
    return module


try:
    import torch as real_torch
except ImportError:
    real_torch = None


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, os.path.join(root, path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def package(name):
    module = stub(name)
    module.__path__ = []
    return module


for name in ["megatron", "megatron.core", "megatron.core.datasets", "megatron.core.tokenizers"]:
    package(name)
torch = package("torch")
torch.utils = package("torch.utils")
torch.utils.data = stub("torch.utils.data")
torch.utils.data.Dataset = object
torch.Tensor = object
distributed = types.SimpleNamespace(is_initialized=lambda: False, get_rank=lambda: 0)
torch.distributed = distributed
for name in [
    "megatron.core.utils",
    "megatron.core.datasets.object_storage_utils",
    "megatron.core.datasets.indexed_dataset",
    "megatron.core.parallel_state",
    "megatron.core.msc_utils",
]:
    stub(name)
sys.modules["megatron.core.utils"].log_single_rank = lambda *args, **kwargs: None
sys.modules["megatron.core.datasets.object_storage_utils"].is_object_storage_path = (
    lambda path: False
)
folder = "megatron/core/datasets/"
helpers_file = [f for f in os.listdir(os.path.join(root, folder)) if f.startswith("helpers_cpp")][0]
load("megatron.core.datasets.helpers_cpp", folder + helpers_file)
helpers = load("megatron.core.datasets.helpers", folder + "helpers.py")
sys.modules["megatron.core.datasets"].helpers = helpers
utils = load("megatron.core.datasets.utils", folder + "utils.py")
load("megatron.core.datasets.megatron_tokenizer", folder + "megatron_tokenizer.py")
config = load(
    "megatron.core.datasets.blended_megatron_dataset_config",
    folder + "blended_megatron_dataset_config.py",
)
load("megatron.core.datasets.megatron_dataset", folder + "megatron_dataset.py")
gpt = load("megatron.core.datasets.gpt_dataset", folder + "gpt_dataset.py")
load("megatron.core.datasets.blended_dataset", folder + "blended_dataset.py")
builder = load(
    "megatron.core.datasets.blended_megatron_dataset_builder",
    folder + "blended_megatron_dataset_builder.py",
)


def lengths_of(count, most):
    """Lengths that the C++ test makes too: a linear congruential generator, 0 now and then."""
    state, lengths = 12345, []
    for _ in range(count):
        state = (state * 1103515245 + 12345) % 2**31
        lengths.append(state // 65536 % most)
    return numpy.array(lengths, dtype=numpy.int32)


def order(lengths, indices, sequence_length, samples, seed):
    """The three indices as GPTDataset makes them, by its own method."""
    dataset = object.__new__(gpt.GPTDataset)
    dataset.config = types.SimpleNamespace(
        defer_npy_index_mmap=False,
        path_to_cache=None,
        mock=True,
        sequence_length=sequence_length,
        add_extra_token_to_sequence=True,
        random_seed=seed,
    )
    dataset.dataset = types.SimpleNamespace(sequence_lengths=lengths)
    dataset.indices = indices
    dataset.num_samples = samples
    dataset.index_split = utils.Split.train
    dataset.unique_description_hash = ""
    documents, starts, shuffle = dataset._build_document_sample_shuffle_indices()
    return {
        "documents": documents.tolist(),
        "starts": starts.reshape(-1).tolist(),
        "shuffle": shuffle.tolist(),
    }


def split_bounds(text, count):
    matrix = config.convert_split_vector_to_split_matrix(config.parse_and_normalize_split(text))
    bounds = []
    for part in matrix:
        if part is None:
            bounds.append([0, 0])
        else:
            bounds.append([int(round(part[0] * float(count))), int(round(part[1] * float(count)))])
    return bounds


def blend(weights, size):
    """The blend's indices, and the samples that each source is asked for."""
    normal = utils.normalize(weights)
    target = builder._get_size_per_split_per_dataset(normal, [size])
    surplus = builder._get_size_per_split_per_dataset(normal, [size], surplus=0.005)
    total = sum(row[0] for row in target)
    again = utils.normalize(normal)  # BlendedDataset normalises once more
    sources = numpy.zeros(total, dtype=numpy.int16)
    samples = numpy.zeros(total, dtype=numpy.int64)
    helpers.build_blending_indices(
        sources, samples, numpy.array(again), len(again), total, False
    )
    return {
        "weights": weights,
        "size": size,
        "total": total,
        "sizes": [row[0] for row in surplus],
        "sources": sources.tolist(),
        "samples": samples.tolist(),
    }


result = {"orders": [], "splits": [], "blends": [], "shuffles": [], "randperm": []}
for count, most, sequence_length, samples, seed in [
    (300, 50, 16, 1500, 1234),  # four epochs, the last on its own
    (300, 50, 16, 1790, 1234),  # of which nearly all of the last is needed
    (100, 200, 64, None, 7),  # one epoch
    (7, 40, 13, 100, 99),  # documents shorter than a sample, many epochs
    (40, 900, 8, 2000, 2**32 - 1),
]:
    lengths = lengths_of(count, most)
    one = order(lengths, numpy.arange(count, dtype=numpy.int32), sequence_length, samples, seed)
    result["orders"].append(
        {"count": count, "most": most, "begin": 0, "end": count, "seq_len": sequence_length,
         "samples": samples, "seed": seed, **one}
    )
# The parts of a split.
lengths = lengths_of(400, 60)
for begin, end in split_bounds("969, 30, 1", 400):
    if end - begin < 2:
        continue
    one = order(lengths, numpy.arange(begin, end, dtype=numpy.int32), 32, 40, 5)
    result["orders"].append(
        {"count": 400, "most": 60, "begin": begin, "end": end, "seq_len": 32, "samples": 40,
         "seed": 5, **one}
    )
for text, count in [("969, 30, 1", 1000), ("969, 30, 1", 17), ("969,30,1", 123457), ("90, 10", 5),
                    ("1, 1, 1", 10), ("99, 1, 0", 50), ("0.5, 0.25, 0.25", 6), ("100, 0, 0", 9),
                    ("0, 1", 9), ("1, 1", 5), ("1, 1", 7)]:
    weights = [float(x) for x in text.split(",")]
    result["splits"].append({"weights": weights, "count": count, "bounds": split_bounds(text, count)})
for weights, size in [([0.3, 0.7], 500), ([1, 2, 3, 0.01], 999), ([1] * 9, 300),
                      ([5, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0.3], 411), ([2.0], 50)]:
    result["blends"].append(blend(weights, size))
# numpy's shuffle: the digest of the permutation, x -> x * 31 + value over 64 bits.
for count in list(range(0, 40)) + [63, 64, 65, 127, 128, 129, 1000, 4095, 4096, 4097, 100000]:
    for seed in [0, 1234, 2**32 - 1]:
        array = numpy.arange(count, dtype=numpy.int64)
        numpy.random.RandomState(seed).shuffle(array)
        digest = 0
        for value in array.tolist():
            digest = (digest * 31 + value) % 2**64
        result["shuffles"].append([count, seed, str(digest)])
array = numpy.arange(1000)
numpy.random.RandomState([5, 1]).shuffle(array)  # how a seed of 2^32 + 5 is given
result["wide_seed"] = array.tolist()
if real_torch is not None and hasattr(real_torch, "randperm"):
    for count, seed in [(1, 0), (2, 3), (10, 0), (10, 1), (257, 12)]:
        generator = real_torch.Generator()
        generator.manual_seed(seed)
        order_ = real_torch.randperm(count, generator=generator).tolist()
        result["randperm"].append({"seed": seed, "order": order_})
with open(sys.argv[2], "w") as out:
    json.dump(result, out, separators=(",", ":"))
    out.write("\n")
