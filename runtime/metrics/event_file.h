// TensorBoard's event files, which `tensorboard --logdir RUN` shows. A file is a row of records,
// each framed as a TFRecord (length, checksum, data, checksum; masked CRC-32C) and holding one
// `Event` of TensorFlow's event.proto; the few fields that scalars, texts and settings need are
// encoded here.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <variant>

#include "common/files.h"

namespace mtl {

struct TaggedScalar {
  std::string tag;  // "train/loss"
  double value = 0;
};

// A setting as TensorBoard's table of runs (HPARAMS) compares it.
struct TaggedSetting {
  std::string key;
  std::variant<bool, double, std::string> value;
};

// One file for each start of a run, behind those that lie in the folder. A record is one write, so
// that readers see all of it or none; one that a full disk has cut is taken back before the next.
// Nothing here throws: each call returns 0 or an errno, also that of a file that could not be
// opened.
class EventFile {
 public:
  using Time = std::chrono::system_clock::time_point;

  // What older files of the folder hold of `first_step` and later steps does not count any more:
  // the run has gone back, and readers drop it (SessionLog START).
  EventFile(const std::filesystem::path& folder, Time now, int64_t first_step);

  int scalars(Time now, int64_t step, std::span<const TaggedScalar> scalars);
  // Markdown, on the tab TEXT.
  int text(Time now, int64_t step, std::string_view tag, std::string_view markdown);
  int settings(Time now, int64_t step, std::span<const TaggedSetting> settings);

 private:
  int append(std::string_view event);

  Fd fd_;
  int error_ = 0;      // of opening
  int64_t whole_ = 0;  // bytes of whole records
  bool torn_ = false;  // there is more behind them
};

// `data` in its frame, as TensorFlow's record_writer.h has it.
std::string event_record(std::string_view data);

}  // namespace mtl
