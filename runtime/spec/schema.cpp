// The one table of train.yaml's keys.
#include "runtime/spec/schema.h"

#include <algorithm>
#include <iterator>

#include "common/text.h"
#include "runtime/spec/schema_sections.h"

namespace mtl::spec {

namespace {

// In the order of the reference page and of resolved.yaml.
const std::vector<Section>& table() {
  static const std::vector<Section> all = {
      run_section(),       model_section(),     position_section(),   latent_section(),
      experts_section(),   parallel_section(),  train_section(),      precision_section(),
      recompute_section(), optimizer_section(), lr_section(),         init_section(),
      lora_section(),      data_section(),      checkpoint_section(), log_section(),
      health_section(),    launch_section(),
  };
  return all;
}

// One list of all sections, of the part `member` of each.
template <class T>
std::vector<T> joined(std::vector<T> Section::*member) {
  std::vector<T> all;
  for (const Section& section : table()) {
    std::copy((section.*member).begin(), (section.*member).end(), std::back_inserter(all));
  }
  return all;
}

}  // namespace

std::string Row::section() const {
  return key.substr(0, key.rfind('.'));
}

std::string Row::name() const {
  return key.substr(key.rfind('.') + 1);
}

const std::vector<Row>& schema() {
  static const std::vector<Row> rows = joined(&Section::rows);
  return rows;
}

const std::vector<Unavailable>& unavailable() {
  static const std::vector<Unavailable> keys = joined(&Section::unavailable);
  return keys;
}

const std::vector<Alternatives>& alternatives() {
  static const std::vector<Alternatives> all = joined(&Section::alternatives);
  return all;
}

const Row* find_row(std::string_view key) {
  for (const Row& row : schema()) {
    if (row.key == key) return &row;
  }
  return nullptr;
}

std::string section_doc(std::string_view section) {
  static const std::vector<std::pair<std::string, std::string>> docs = joined(&Section::docs);
  for (const auto& [name, doc] : docs) {
    if (name == section) return doc;
  }
  return {};
}

const std::vector<std::string>& sections() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> found;
    for (const Row& row : schema()) {
      for (size_t dot = row.key.find('.'); dot != std::string::npos;
           dot = row.key.find('.', dot + 1)) {
        const std::string section = row.key.substr(0, dot);
        if (std::find(found.begin(), found.end(), section) == found.end()) {
          found.push_back(section);
        }
      }
    }
    return found;
  }();
  return all;
}

bool is_section(std::string_view path) {
  return std::find(sections().begin(), sections().end(), path) != sections().end();
}

std::string environment_name(std::string_view key) {
  std::string name = "MTL_";
  for (const char c : key) {
    if (c == '.') {
      name += "__";
    } else {
      name += upper(c);
    }
  }
  return name;
}

}  // namespace mtl::spec
