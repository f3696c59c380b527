// Units of all inputs, encoded by several threads, in the order of the text.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/data/text_units.h"
#include "runtime/data/unit_encoder.h"

namespace mtl {

struct EncodedStep {
  size_t file = 0;
  TextUnit unit;  // without its text
  EncodedUnit encoded;
  int64_t text_bytes = 0;
  int64_t input_bytes = 0;  // of all files, used up to here
  bool ends_file = false;   // nothing else is in it
};

class EncodePipeline {
 public:
  // With fewer workers where the system starts no more threads; none is an error.
  EncodePipeline(const Tokenizer& tokenizer, const EncodeOptions& encode, const CutOptions& cut,
                 const std::vector<TextInput>& files, int64_t workers, size_t first_file,
                 const UnitCutter::Start& start);
  ~EncodePipeline();
  enum class Next { step, end, wait };
  // The next step, or `wait` after a while without one. Throws what went wrong at that place.
  Next next(EncodedStep& step);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace mtl
