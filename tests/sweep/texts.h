// The texts that drawn runs train on: a folder with the same small files each time.
#pragma once

#include <cstdint>
#include <filesystem>

#include "sweep/settings.h"

namespace mtl::sweep {

// Token ids of the corpora without a text; the last one ends a document.
constexpr int32_t kIds = 61;
// Different characters of the texts.
constexpr int64_t kCharacters = 29;

// Token ids, as far as the settings say them.
int64_t vocab_of(const Settings& settings);

// a.txt, b.txt, valid.txt, short.txt; corpora one and two (Megatron's), ids.bin (nanoGPT's);
// train.yaml, which is as good as empty.
void write_texts(const std::filesystem::path& folder);

}  // namespace mtl::sweep
