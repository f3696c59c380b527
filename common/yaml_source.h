// Inside of the YAML reader: the text that is parsed, and what yaml-cpp's complaints about it mean.
// Includes yaml-cpp; only the .cpp files of the reader may include this.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>

#include "common/error.h"
#include "common/yaml.h"

namespace mtl {

// Where lines start, and columns in characters (yaml-cpp counts bytes).
class YamlSource {
 public:
  YamlSource(std::string_view text, std::string file_name)
      : text_(text), file_name_(std::move(file_name)), line_starts_{0} {
    for (size_t i = 0; i < text_.size(); ++i) {
      if (text_[i] == '\n') line_starts_.push_back(i + 1);
    }
  }

  size_t offset(const YAML::Mark& mark) const {
    if (mark.is_null()) return 0;
    const auto line = static_cast<size_t>(mark.line);
    if (line >= line_starts_.size()) return text_.size();
    return std::min(line_starts_[line] + static_cast<size_t>(mark.column), text_.size());
  }

  Place place(size_t offset) {
    const auto next = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
    const size_t line = static_cast<size_t>(next - line_starts_.begin()) - 1;
    // Marks come almost in order, so counting goes on from the last one: a file of one long line
    // would be counted from its start for every value otherwise.
    if (line != last_line_ || offset < last_offset_) {
      last_line_ = line;
      last_offset_ = line_starts_[line];
      last_column_ = 1;
    }
    for (; last_offset_ < offset; ++last_offset_) {
      if ((static_cast<unsigned char>(text_[last_offset_]) & 0xC0) != 0x80) ++last_column_;
    }
    return Place{file_name_, static_cast<int>(line) + 1, last_column_};
  }

  Place place(const YAML::Mark& mark) { return place(offset(mark)); }
  std::string_view text() const { return text_; }
  size_t line_start(size_t offset) const {
    return *(std::upper_bound(line_starts_.begin(), line_starts_.end(), offset) - 1);
  }

 private:
  std::string_view text_;
  std::string file_name_;
  std::vector<size_t> line_starts_;
  size_t last_line_ = 0;
  size_t last_offset_ = 0;
  int last_column_ = 1;
};

// `open`: the innermost list or map whose end has not come, if any.
Diagnostic explain_yaml(const YAML::Exception& exception, YamlSource& source,
                        const YamlValue* open);

}  // namespace mtl
