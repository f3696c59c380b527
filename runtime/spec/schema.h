// The schema table of train.yaml, for the files of this room only. One row per key: everything that
// parsing, defaults, overrides, resolved.yaml, the JSON Schema and the reference page know of it.
// Defaults stand in TrainSpec itself and nowhere else.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/spec/train_spec.h"

namespace mtl::spec {

// Two numbers, written as one list (optimizer.betas).
using DoublePair = std::pair<double*, double*>;
// What holds from a step or an epoch on: `{0: 8, 4: 4}`, keys ascending from 0; a plain `8` is
// `{0: 8}`.
using Ramp = std::map<int64_t, int64_t>;
// One of the row's choices, or a list of whole numbers, which is empty where the word decides.
struct WordOrList {
  std::string* word = nullptr;
  std::vector<int64_t>* list = nullptr;
};
// Some of the row's choices, each at most once, with a number behind some: `[norm, mlp_act: 7]`;
// without `counts` the words alone.
struct CountedWords {
  std::vector<std::string>* words = nullptr;
  std::map<std::string, int64_t>* counts = nullptr;
};
// A text, or a list of paths with weights, which is empty where the text decides; where there are
// `sets`, also several of these by name, and both are empty then.
struct TextOrSources {
  std::string* text = nullptr;
  std::vector<TrainSpec::Data::Source>* list = nullptr;
  std::vector<std::pair<std::string, std::vector<TrainSpec::Data::Source>>>* sets = nullptr;
};
// A text for somebody else who reads it, or a list of such texts where the row allows it; nothing
// where nobody gives it.
struct Passed {
  std::map<std::string, std::vector<std::string>>* texts = nullptr;
  const char* name = nullptr;
};
// Where a value lives. A list of texts holds any.
using Field = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::string*,
                           std::vector<double>*, DoublePair, Ramp*, WordOrList, CountedWords,
                           std::vector<std::string>*, TextOrSources, Passed>;

// An allowed value of a row with a fixed set of values.
struct Choice {
  std::string value;
  std::string doc;
};
// A value that people try although it is not among the choices.
struct Refused {
  std::string value;
  std::string instead;  // the choice that means the same; empty = there is none
  std::string why;  // "not available in this version"; what belongs to `instead`, if there is one
};

struct Row {
  std::string key;  // "train.micro_batch"
  Field (*field)(TrainSpec&) = nullptr;
  std::string doc;           // one sentence or two, in Markdown
  std::string example = {};  // for "add `layers: 12`" and the reference page
  bool required = false;
  bool is_path = false;       // of a string: a path
  bool is_name = false;       // of a string: the name of a folder
  std::string auto_doc = {};  // if not empty, `auto` is allowed and stored as 0 or as nothing
  bool suffixes = false;      // of an integer, of the keys of a ramp: k, M, G are allowed
  bool is_list = false;       // of what is passed on: a list of texts as well as one
  bool is_duration = false;   // of an integer: seconds, written as 90s, 30m, 12h, 1d
  double min = std::numeric_limits<double>::lowest();
  double max = std::numeric_limits<double>::max();
  bool above_min = false;  // min itself is not allowed
  bool below_max = false;  // max itself is not allowed
  size_t most_items = 3;   // of a list of numbers, which has at least one
  std::vector<Choice> choices = {};
  std::vector<Refused> refused = {};
  std::vector<std::string> known_as = {};  // last parts of the names that other trainers use

  std::string section() const;  // "train.eval" of "train.eval.every"
  std::string name() const;     // "every"
};

// Keys of which a run gives one: two of them would contradict each other. "Given" is a value that
// is not `auto`.
struct Alternatives {
  std::vector<std::string> keys;  // the first is the one to recommend
  bool required = true;           // one must be given
};

// Keys and sections of other trainers, or planned here, that this version refuses.
struct Unavailable {
  std::string key;
  std::string why;  // ends the sentence "`key` is not available in this version"; may be empty
};

const std::vector<Row>& schema();
const std::vector<Unavailable>& unavailable();
const std::vector<Alternatives>& alternatives();
const Row* find_row(std::string_view key);
// The doc sentence of a section ("train.eval").
std::string section_doc(std::string_view section);
// All sections, parents before children, in the order of the table.
const std::vector<std::string>& sections();
bool is_section(std::string_view path);

// "MTL_TRAIN__EVAL__EVERY" of "train.eval.every".
std::string environment_name(std::string_view key);

}  // namespace mtl::spec
