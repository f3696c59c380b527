#include "cli/config/wizard_view.h"

#include <algorithm>

#include "common/text.h"
#include "common/utf8.h"

namespace mtl {

QuestionView::QuestionView(Question question, std::vector<std::string> body)
    : question_(std::move(question)), body_(std::move(body)) {
  for (size_t i = 0; i < question_.choices.size(); ++i) {
    if (question_.choices[i].value == question_.preset) cursor_ = i;
  }
  // What changes is what one looks for.
  const auto change = std::find_if(body_.begin(), body_.end(), [](const std::string& line) {
    return line.starts_with("+ ") || line.starts_with("- ");
  });
  if (change != body_.end())
    scrolled_ = std::max<int>(0, static_cast<int>(change - body_.begin()) - 2);
}

std::vector<size_t> QuestionView::shown() const {
  std::vector<size_t> all;
  const std::string wanted = lower(filter_);
  for (size_t i = 0; i < question_.choices.size(); ++i) {
    const Choice& choice = question_.choices[i];
    const bool fits = wanted.empty() || lower(choice.label).find(wanted) != std::string::npos ||
                      lower(choice.value).find(wanted) != std::string::npos;
    if (fits) all.push_back(i);
  }
  return all;
}

std::string QuestionView::answer() const {
  return question_.choices.empty() ? text_ : question_.choices[cursor_].value;
}

QuestionView::Event QuestionView::key(const Key& key) {
  wrong_.clear();
  switch (key.kind) {
    case Key::Kind::interrupt:
    case Key::Kind::closed:
      return Event::quit;
    case Key::Kind::suspend:
      return Event::suspend;
    case Key::Kind::page_up:
      scroll(-10);
      return Event::none;
    case Key::Kind::page_down:
      scroll(10);
      return Event::none;
    default:
      return question_.choices.empty() ? text_key(key) : menu_key(key);
  }
}

void QuestionView::scroll(int by) {
  scrolled_ = std::clamp(scrolled_ + by, 0, std::max(0, static_cast<int>(body_.size()) - 1));
}

void QuestionView::move(int by) {
  const std::vector<size_t> rows = shown();
  if (rows.empty()) return;
  const auto here = std::find(rows.begin(), rows.end(), cursor_);
  const int at = here == rows.end() ? 0 : static_cast<int>(here - rows.begin()) + by;
  cursor_ = rows[static_cast<size_t>(std::clamp(at, 0, static_cast<int>(rows.size()) - 1))];
}

QuestionView::Event QuestionView::menu_key(const Key& key) {
  const int all = static_cast<int>(question_.choices.size());
  switch (key.kind) {
    case Key::Kind::up:
      move(-1);
      return Event::none;
    case Key::Kind::down:
    case Key::Kind::tab:
      move(1);
      return Event::none;
    case Key::Kind::home:
      move(-all);
      return Event::none;
    case Key::Kind::end:
      move(all);
      return Event::none;
    case Key::Kind::enter: {
      const auto rows = shown();
      if (std::find(rows.begin(), rows.end(), cursor_) == rows.end()) {
        wrong_ = "No choice has these letters.";
        return Event::none;
      }
      return Event::answer;
    }
    case Key::Kind::right:
      return Event::none;
    case Key::Kind::left:
      return Event::back;
    case Key::Kind::escape:
      if (filtering_ || !filter_.empty()) {
        filter_.clear();
        filtering_ = false;
        return Event::none;
      }
      return Event::back;
    case Key::Kind::backspace:
      filter_.resize(previous_character(filter_, filter_.size()));
      filtering_ = !filter_.empty();
      return Event::none;
    case Key::Kind::kill_line:
      filter_.clear();
      filtering_ = false;
      return Event::none;
    case Key::Kind::character:
      break;
    default:
      return Event::none;
  }
  const std::string& text = key.text;
  if (text == "?") {  // in no choice
    help_ = !help_;
    return Event::none;
  }
  if (!filtering_) {
    if (text == "<") return Event::back;
    if (text == "j" || text == "k") {
      move(text == "j" ? 1 : -1);
      return Event::none;
    }
    if (text == "/") {
      filtering_ = true;
      return Event::none;
    }
    if (text == " ") return Event::none;
    for (size_t i = 0; i < question_.choices.size(); ++i) {
      if (text == question_.key_of(i)) {
        cursor_ = i;
        return Event::none;
      }
    }
  }
  filtering_ = true;
  filter_ += text;
  const auto rows = shown();
  if (!rows.empty() && std::find(rows.begin(), rows.end(), cursor_) == rows.end()) {
    cursor_ = rows.front();
  }
  return Event::none;
}

QuestionView::Event QuestionView::text_key(const Key& key) {
  switch (key.kind) {
    case Key::Kind::enter:
      return Event::answer;
    case Key::Kind::escape:
      return Event::back;
    case Key::Kind::left:
      if (caret_ == 0) return Event::back;
      caret_ = previous_character(text_, caret_);
      return Event::none;
    case Key::Kind::right:
      caret_ = next_character(text_, caret_);
      return Event::none;
    case Key::Kind::home:
      caret_ = 0;
      return Event::none;
    case Key::Kind::end:
      caret_ = text_.size();
      return Event::none;
    case Key::Kind::backspace: {
      const size_t end = caret_;
      caret_ = previous_character(text_, end);
      text_.erase(caret_, end - caret_);
      return Event::none;
    }
    case Key::Kind::erase:
      text_.erase(caret_, next_character(text_, caret_) - caret_);
      return Event::none;
    case Key::Kind::tab:  // the proposal, to be changed
      if (text_.empty()) text_ = question_.preset;
      caret_ = text_.size();
      return Event::none;
    case Key::Kind::kill_line:
      text_.clear();
      caret_ = 0;
      return Event::none;
    case Key::Kind::character:
      break;
    default:
      return Event::none;
  }
  if (text_.empty() && key.text == "?") {
    help_ = !help_;
  } else if (text_.empty() && key.text == "<") {
    return Event::back;
  } else {
    text_.insert(caret_, key.text);
    caret_ += key.text.size();
  }
  return Event::none;
}

}  // namespace mtl
