// Strict YAML on the events of yaml-cpp 0.7, whose Node keeps the first of duplicate keys, ignores
// merge keys and never looks at a second document. Its scanner has gaps of its own (an unclosed
// single quote, a key without a colon), which are closed here.
#include "common/yaml.h"

#include <memory>
#include <sstream>
#include <string_view>
#include <unordered_map>

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include "common/files.h"
#include "common/utf8.h"
#include "common/yaml_source.h"

namespace mtl {

namespace {

constexpr size_t kMaxDepth = 64;
// One slip can make hundreds of errors; nobody reads more than these.
constexpr size_t kMaxErrors = 20;

// Ends the parsing after an error that makes the rest meaningless.
struct Stop {};

YamlValue make(YamlValue::Kind kind, const Place& place) {
  YamlValue value;
  value.kind = kind;
  value.place = place;
  return value;
}

// False, with a diagnostic, at the first byte that is no text.
bool check_characters(YamlSource& source, Diagnostics& diagnostics) {
  const std::string_view text = source.text();
  for (size_t i = 0; i < text.size();) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x20 && byte != '\t' && byte != '\n' && byte != '\r') {
      diagnostics.add({.code = "yaml.encoding",
                       .what = fmt::format("control character U+{:04X} in the text", byte),
                       .place = source.place(i),
                       .help = "remove it; if the whole file looks like this, it is not a text "
                               "file or not UTF-8 (see: file <path>)"});
      return false;
    }
    const size_t length = utf8_length(text, i);
    if (length == 0) {
      diagnostics.add({.code = "yaml.encoding",
                       .what = fmt::format("the byte 0x{:02X} is not valid UTF-8", byte),
                       .place = source.place(i),
                       .help = "save the file as UTF-8"});
      return false;
    }
    i += length;
  }
  return true;
}

// Builds the tree from events; throws Stop when it cannot go on.
class TreeBuilder : public YAML::EventHandler {
 public:
  TreeBuilder(YamlSource& source, YamlValue& root, Diagnostics& diagnostics)
      : source_(source), root_(root), diagnostics_(diagnostics) {}

  // The innermost list or map that is still open.
  const YamlValue* open_container() const {
    return frames_.empty() ? nullptr : frames_.back().value;
  }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    const size_t offset = source_.offset(mark);
    const std::string_view line = source_.text().substr(source_.line_start(offset));
    if (line.starts_with("---") || line.starts_with("...")) {
      add({.code = "yaml.documents",
           .what = "the file has a second document",
           .place = source_.place(offset),
           .help = "keep one document per file: remove everything from this `---` on"});
    } else {
      add({.code = "yaml.syntax",
           .what = "this does not belong to what stands above it",
           .place = source_.place(offset),
           .help = "indent it like the keys above, or remove it"});
    }
    throw Stop{};
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const Place place = source_.place(mark);
    check_anchor(place, anchor);
    if (expects_key()) {
      add({.code = "yaml.key",
           .what = "a key is missing before this `:`",
           .place = place,
           .help = "write `key: value`"});
      drop_key();
      return;
    }
    if (!frames_.empty() && frames_.back().is_map && frames_.back().in_block) {
      const Frame& frame = frames_.back();
      // yaml-cpp takes a line that is only a word for a key; it marks the value it made up with
      // the key's place.
      if (frame.key_place.line == place.line && frame.key_place.column == place.column) {
        add({.code = "yaml.syntax",
             .what = fmt::format("`{}` stands alone: a `:` and a value are missing", frame.key),
             .place = place,
             .help = fmt::format("write `{}: value`", frame.key)});
      }
    }
    *slot() = make(YamlValue::Kind::null, place);
    done();
  }

  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse_anchor(source_.place(mark));
    if (expects_key()) {
      drop_key();
      return;
    }
    *slot() = make(YamlValue::Kind::null, source_.place(mark));
    done();
  }

  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& text) override {
    const Place place = source_.place(mark);
    check_anchor(place, anchor);
    check_tag(place, tag);
    const bool quoted = tag != "?";
    if (quoted) check_closed(mark);
    if (expects_key()) {
      take_key(text, quoted, place);
      return;
    }
    YamlValue* value = slot();
    *value = make(YamlValue::Kind::scalar, place);
    value->text = text;
    value->quoted = quoted;
    done();
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value style) override {
    open(mark, tag, anchor, YamlValue::Kind::list, style);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value style) override {
    open(mark, tag, anchor, YamlValue::Kind::map, style);
  }
  void OnMapEnd() override { close(); }

  void add(Diagnostic diagnostic) {
    diagnostics_.add(std::move(diagnostic));
    if (++errors_ >= kMaxErrors) throw Stop{};
  }

 private:
  struct Frame {
    YamlValue* value = nullptr;
    bool is_map = false;
    bool in_block = false;  // lines and indentation, not brackets
    bool has_key = false;   // of a map: the next event is the value of `key`
    bool keep = false;      // that value goes into the tree
    std::string key;
    Place key_place;
    std::unordered_map<std::string, Place> seen = {};
    std::unique_ptr<YamlValue> dropped = {};  // takes values that do not go into the tree
  };

  bool expects_key() const {
    return !frames_.empty() && frames_.back().is_map && !frames_.back().has_key;
  }

  // Where the next value goes. Pointers into a parent stay good: it grows only after the child.
  YamlValue* slot() {
    if (frames_.empty()) return &root_;
    Frame& frame = frames_.back();
    if (!frame.is_map) return &frame.value->items.emplace_back();
    if (frame.has_key && frame.keep) {
      frame.value->entries.push_back({frame.key, frame.key_place, {}});
      return &frame.value->entries.back().value;
    }
    frame.dropped = std::make_unique<YamlValue>();
    return frame.dropped.get();
  }

  // A value is complete; inside a map its end toggles between key and value.
  void done() {
    if (!frames_.empty() && frames_.back().is_map) frames_.back().has_key = false;
  }

  void drop_key() {
    frames_.back().has_key = true;
    frames_.back().keep = false;
    frames_.back().key_place = {};
  }

  void take_key(const std::string& key, bool quoted, const Place& place) {
    Frame& frame = frames_.back();
    frame.has_key = true;
    frame.keep = false;
    frame.key = key;
    frame.key_place = place;
    if (key == "<<" && !quoted) {
      add({.code = "yaml.merge",
           .what = "merge keys (`<<`) are not read",
           .place = place,
           .help = "write the keys out, so that the file says what runs"});
      return;
    }
    const auto [first, is_new] = frame.seen.emplace(key, place);
    if (!is_new) {
      add({.code = "yaml.duplicate",
           .what = fmt::format("`{}` is given twice", key),
           .place = place,
           .notes = {fmt::format("first given at line {}, column {}", first->second.line,
                                 first->second.column)},
           .help = "keep one of them"});
      return;
    }
    frame.keep = true;
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
            YamlValue::Kind kind, YAML::EmitterStyle::value style) {
    const Place place = source_.place(mark);
    check_anchor(place, anchor);
    check_tag(place, tag);
    if (frames_.size() >= kMaxDepth) {
      add({.code = "yaml.depth",
           .what = fmt::format("more than {} levels of nesting", kMaxDepth),
           .place = place,
           .help = "no setting is that deep: check the brackets above"});
      throw Stop{};
    }
    const bool is_key = expects_key();
    YamlValue* value = slot();
    *value = make(kind, place);
    if (is_key) key_depths_.push_back(frames_.size());
    frames_.push_back(Frame{.value = value,
                            .is_map = kind == YamlValue::Kind::map,
                            .in_block = style == YAML::EmitterStyle::Block,
                            .key = {},
                            .key_place = {}});
  }

  void close() {
    const Frame closed = std::move(frames_.back());
    frames_.pop_back();
    if (!key_depths_.empty() && key_depths_.back() == frames_.size()) {
      key_depths_.pop_back();
      // Not before its end: yaml-cpp takes every bracket that is never closed for a key.
      const Place place = frames_.back().dropped->place;
      add({.code = "yaml.key",
           .what = fmt::format("a {} cannot be a key", closed.is_map ? "map" : "list"),
           .place = place,
           .help = "a key is a plain word; quote text that starts with `[` or `{`"});
      drop_key();
    } else {
      done();
    }
  }

  void check_anchor(const Place& place, YAML::anchor_t anchor) {
    if (anchor != 0) refuse_anchor(place);
  }

  void refuse_anchor(const Place& place) {
    add({.code = "yaml.anchor",
         .what = "anchors (`&name`) and aliases (`*name`) are not read",
         .place = place,
         .help = "write the value out; quote text that starts with `&` or `*`"});
  }

  void check_tag(const Place& place, const std::string& tag) {
    if (tag.empty() || tag == "?" || tag == "!") return;
    add({.code = "yaml.tag",
         .what = fmt::format("tags are not read: `{}`", tag),
         .place = place,
         .help = "remove it; quote text that starts with `!`"});
  }

  // yaml-cpp ends a quoted text at the end of the file as if it were closed.
  void check_closed(const YAML::Mark& mark) {
    const std::string_view text = source_.text();
    const size_t open = source_.offset(mark);
    const char quote = open < text.size() ? text[open] : ' ';
    if (quote != '\'' && quote != '"') return;
    for (size_t at = open + 1; at < text.size(); ++at) {
      const bool doubled = quote == '\'' && text.substr(at).starts_with("''");
      if (doubled || (quote == '"' && text[at] == '\\')) {
        ++at;
      } else if (text[at] == quote) {
        return;
      }
    }
    add({.code = "yaml.syntax",
         .what = "this quote is never closed",
         .place = source_.place(open),
         .help = fmt::format("end the text with `{}`", quote)});
    throw Stop{};
  }

  YamlSource& source_;
  YamlValue& root_;
  Diagnostics& diagnostics_;
  std::vector<Frame> frames_;
  std::vector<size_t> key_depths_;  // numbers of frames around each list or map used as a key
  int documents_ = 0;
  size_t errors_ = 0;
};

}  // namespace

const YamlValue* YamlValue::find(const std::string& key) const {
  for (const Entry& entry : entries) {
    if (entry.key == key) return &entry.value;
  }
  return nullptr;
}

YamlValue parse_yaml(const std::string& text, const std::string& file_name,
                     Diagnostics& diagnostics) {
  YamlValue root = make(YamlValue::Kind::null, Place{file_name, 1, 1});
  if (text.size() > kYamlMaxBytes) {
    diagnostics.add({.code = "yaml.size",
                     .what = fmt::format("more than {} bytes of YAML", kYamlMaxBytes),
                     .place = Place{file_name},
                     .help = "a file of settings has some kilobytes: is this the right file?"});
    return root;
  }
  // Editors on Windows put a byte order mark in front.
  const std::string content = text.starts_with("\xEF\xBB\xBF") ? text.substr(3) : text;
  YamlSource source(content, file_name);
  if (!check_characters(source, diagnostics)) return root;

  TreeBuilder builder(source, root, diagnostics);
  // Without a last line end, yaml-cpp places what is missing there on the last word.
  std::istringstream in(content + '\n');
  try {
    YAML::Parser parser(in);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Stop&) {
    // Its error is in `diagnostics`.
  } catch (const YAML::Exception& exception) {
    diagnostics.add(explain_yaml(exception, source, builder.open_container()));
  }
  return root;
}

YamlValue read_yaml(const std::string& path, Diagnostics& diagnostics) {
  std::string text;
  try {
    text = read_file(path, kYamlMaxBytes + 1);
  } catch (const Error& error) {
    for (const Diagnostic& diagnostic : error.diagnostics()) diagnostics.add(diagnostic);
    return make(YamlValue::Kind::null, Place{path});
  }
  return parse_yaml(text, path, diagnostics);
}

}  // namespace mtl
