// How a question of `mtl config` looks in a terminal, and what keys do to it. Pure: keys in, lines
// out, so that every width and every key can be tested.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cli/config/painter.h"
#include "common/keys.h"
#include "launcher/config/config_wizard.h"

namespace mtl {

class QuestionView {
 public:
  // `body`: lines above the choices that can be scrolled (the file at the review).
  explicit QuestionView(Question question, std::vector<std::string> body = {});

  enum class Event { none, answer, back, quit, suspend };
  Event key(const Key& key);
  std::string answer() const;  // after Event::answer: a choice's value, or the text
  // What was typed before, to be corrected.
  void type(const std::string& text) {
    text_ = text;
    caret_ = text.size();
  }
  // Under the field until the next key.
  void fail(std::string sentence) { wrong_ = std::move(sentence); }
  // What follows from the text so far.
  using Comment = std::function<std::string(const std::string& typed)>;
  // Not more lines than `canvas.rows`, none wider than its columns. `trail`: what was answered.
  std::vector<std::string> draw(const Canvas& canvas, const std::vector<ConfigWizard::Said>& trail,
                                const Comment& comment) const;

 private:
  std::vector<size_t> shown() const;  // choices that the filter lets through
  struct Menu {
    std::vector<std::string> lines;
    int marked = 0;  // the line of the choice that Enter takes
  };
  Menu menu(const Painter& paint) const;
  std::string field(const Painter& paint) const;
  std::vector<std::string> body_lines(const Painter& paint, int room) const;
  Event menu_key(const Key& key);
  Event text_key(const Key& key);
  void move(int by);
  void scroll(int by);

  Question question_;
  std::vector<std::string> body_;
  size_t cursor_ = 0;  // in question_.choices
  std::string filter_;
  bool filtering_ = false;
  std::string text_;
  size_t caret_ = 0;  // bytes
  bool help_ = false;
  int scrolled_ = 0;
  std::string wrong_;
};

}  // namespace mtl
