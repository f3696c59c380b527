#include "cli/wizard_view.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "common/terminal.h"
#include "common/text.h"

namespace mtl {

namespace {

constexpr int kWidest = 100;  // texts are read best so; the file may be wider

bool starts_character(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

// Lines of a frame, each cut to the width before it gets its colour.
class Painter {
 public:
  explicit Painter(const Canvas& canvas)
      : canvas_(canvas), width_(std::max(1, canvas.columns - 1)) {}

  std::string line(const std::string& text, const char* style = "") const {
    const std::string cut = fit_width(text, width_, canvas_.utf8);
    if (!canvas_.color || *style == '\0' || cut.empty()) return cut;
    return fmt::format("\x1b[{}m{}\x1b[0m", style, cut);
  }
  std::vector<std::string> paragraph(const std::string& text, const char* style, int indent) const {
    std::vector<std::string> lines;
    const int width = std::min(width_, kWidest);
    const std::string wrapped =
        std::string(static_cast<size_t>(indent), ' ') + wrap_text(text, width, indent, indent);
    size_t start = 0;
    while (start <= wrapped.size()) {
      const size_t end = std::min(wrapped.find('\n', start), wrapped.size());
      lines.push_back(line(wrapped.substr(start, end - start), style));
      start = end + 1;
    }
    return lines;
  }
  // Two styles in one line: what is left of the width goes to the second.
  std::string two(const std::string& left, const char* left_style, const std::string& right,
                  const char* right_style) const {
    const std::string first = fit_width(left, width_, canvas_.utf8);
    const int rest = width_ - display_width(first);
    const std::string second = rest > 1 ? fit_width(right, rest, canvas_.utf8) : std::string();
    const auto styled = [&](const std::string& text, const char* style) {
      return canvas_.color && *style != '\0' && !text.empty()
                 ? fmt::format("\x1b[{}m{}\x1b[0m", style, text)
                 : text;
    };
    return styled(first, left_style) + styled(second, right_style);
  }
  int width() const { return width_; }

 private:
  const Canvas& canvas_;
  // The last column stays empty: terminals differ in what they do after it.
  int width_;
};

constexpr const char* kBold = "1";
constexpr const char* kDim = "2";
constexpr const char* kMarked = "32";
constexpr const char* kWrong = "31";

void append(std::vector<std::string>& lines, std::vector<std::string> more) {
  lines.insert(lines.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
}

}  // namespace

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
      while (!filter_.empty() && !starts_character(filter_.back())) filter_.pop_back();
      if (!filter_.empty()) filter_.pop_back();
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
  if (!filtering_) {
    if (text == "?") {
      help_ = !help_;
      return Event::none;
    }
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
  const auto left = [&] {
    if (caret_ > 0) --caret_;
    while (caret_ > 0 && !starts_character(text_[caret_])) --caret_;
  };
  const auto right = [&] {
    if (caret_ < text_.size()) ++caret_;
    while (caret_ < text_.size() && !starts_character(text_[caret_])) ++caret_;
  };
  switch (key.kind) {
    case Key::Kind::enter:
      return Event::answer;
    case Key::Kind::escape:
      return Event::back;
    case Key::Kind::left:
      if (caret_ == 0) return Event::back;
      left();
      return Event::none;
    case Key::Kind::right:
      right();
      return Event::none;
    case Key::Kind::home:
      caret_ = 0;
      return Event::none;
    case Key::Kind::end:
      caret_ = text_.size();
      return Event::none;
    case Key::Kind::backspace: {
      const size_t end = caret_;
      left();
      text_.erase(caret_, end - caret_);
      return Event::none;
    }
    case Key::Kind::erase: {
      const size_t start = caret_;
      right();
      text_.erase(start, caret_ - start);
      caret_ = start;
      return Event::none;
    }
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

std::vector<std::string> QuestionView::draw(const Canvas& canvas,
                                            const std::vector<ConfigWizard::Said>& trail,
                                            const Comment& comment) const {
  const Painter paint(canvas);
  const char* const mark = canvas.utf8 ? "❯" : ">";

  std::vector<std::string> top = paint.paragraph(question_.text, kBold, 0);
  if (!question_.note.empty()) append(top, paint.paragraph(question_.note, kDim, 0));
  if (help_) {
    append(top, paint.paragraph(
                    question_.help.empty() ? "There is no more to say about it." : question_.help,
                    "36", 2));
  }

  std::vector<std::string> answers;
  size_t marked = 0;
  if (question_.choices.empty()) {
    // The caret is a block of its own: the terminal's cursor is hidden.
    const std::string before = text_.substr(0, caret_);
    size_t end = caret_;
    if (end < text_.size()) ++end;
    while (end < text_.size() && !starts_character(text_[end])) ++end;
    const std::string under = caret_ < text_.size() ? text_.substr(caret_, end - caret_) : " ";
    const std::string after = end < text_.size() ? text_.substr(end) : "";
    const bool fits = display_width(text_) + 4 < paint.width();
    std::string field = fmt::format("{} ", mark);
    if (text_.empty()) {
      const std::string proposal =
          question_.preset.empty() ? std::string() : fmt::format(" [{}]", question_.preset);
      answers.push_back(paint.two(canvas.color ? field : field + "_", kMarked,
                                  canvas.color ? fmt::format(" {}", proposal) : proposal, kDim));
    } else if (canvas.color && fits) {
      answers.push_back(
          fmt::format("\x1b[32m{}\x1b[0m{}\x1b[7m{}\x1b[0m{}", field, before, under, after));
    } else if (fits) {
      answers.push_back(field + before + "_" + (under == " " ? "" : under) + after);
    } else {  // its end is where people type
      std::string tail = text_;
      while (display_width(tail) + 5 >= paint.width() && !tail.empty()) {
        tail.erase(0, 1);
        while (!tail.empty() && !starts_character(tail[0])) tail.erase(0, 1);
      }
      answers.push_back(field + (canvas.utf8 ? "…" : "~") + tail + "_");
    }
    const std::string follows = comment ? comment(text_) : std::string();
    if (!follows.empty()) append(answers, paint.paragraph(follows, kDim, 2));
  } else {
    // Hints stand below each other where all of them fit, else right behind their choice.
    int widest = 0, longest = 0;
    for (const Choice& choice : question_.choices) {
      widest = std::max(widest, display_width(choice.label));
      longest = std::max(longest, display_width(choice.hint));
    }
    const bool aligned = 4 + widest + 2 + longest <= paint.width();
    for (size_t i : shown()) {
      const Choice& choice = question_.choices[i];
      const bool here = i == cursor_;
      if (here) marked = answers.size();
      std::string left =
          fmt::format("{} {} {}", here ? mark : " ", question_.key_of(i), choice.label);
      const int gap = aligned ? widest - display_width(choice.label) + 2 : 2;
      const std::string label_end(static_cast<size_t>(gap), ' ');
      answers.push_back(paint.two(left, here ? kMarked : "",
                                  choice.hint.empty() ? "" : label_end + choice.hint, kDim));
    }
    if (filtering_) {
      answers.push_back(paint.line(fmt::format("  with the letters: {}", filter_), kDim));
    }
  }
  std::vector<std::string> bottom;
  if (!wrong_.empty()) append(bottom, paint.paragraph(wrong_, kWrong, 2));
  bottom.emplace_back();
  bottom.push_back(
      paint.line(paint.width() < 74 ? "Enter · Esc back · ? help · Ctrl-C leaves"
                 : question_.choices.empty()
                     ? "Enter takes it · Tab edits the proposal · Esc back · ? help · Ctrl-C leaves"
                     : "arrows, j k, digits, letters · Enter · Esc back · ? help · Ctrl-C leaves",
                 kDim));
  if (!canvas.utf8) {
    for (size_t at; (at = bottom.back().find("·")) != std::string::npos;) {
      bottom.back().replace(at, std::string_view("·").size(), "-");
    }
  }

  // What does not fit goes: the trail first, then the body's and the menu's far ends.
  const int rows = std::max(4, canvas.rows);
  const auto size = [](const std::vector<std::string>& lines) {
    return static_cast<int>(lines.size());
  };
  int room = rows - 1 - size(top) - size(bottom);
  if (size(answers) > std::max(1, room)) {
    const int keep = std::max(1, room);
    const int first = std::clamp(static_cast<int>(marked) - keep / 2, 0, size(answers) - keep);
    answers = {answers.begin() + first, answers.begin() + first + keep};
  }
  room -= size(answers);

  std::vector<std::string> frame;
  if (!body_.empty()) {
    const int shown_rows = std::max(0, room - 2);
    const int first = std::clamp(scrolled_, 0, std::max(0, size(body_) - shown_rows));
    for (int i = first; i < std::min(size(body_), first + shown_rows); ++i) {
      const std::string& text = body_[static_cast<size_t>(i)];
      const char* style = text.starts_with("+ ")   ? "32"
                          : text.starts_with("- ") ? "31"
                          : text.starts_with("# ") ? "36"
                                                   : "";
      frame.push_back(paint.line(text, style));
    }
    const int below = size(body_) - first - shown_rows;
    if (room >= 2) {
      frame.push_back(below > 0 || first > 0 ? paint.line(fmt::format("({} more lines: PgUp, PgDn)",
                                                                      size(body_) - shown_rows),
                                                          kDim)
                                             : std::string());
    }
  } else if (room >= 2 && !trail.empty()) {
    const int keep = std::min(size(top) > 0 ? room - 1 : room, static_cast<int>(trail.size()));
    for (size_t i = trail.size() - static_cast<size_t>(keep); i < trail.size(); ++i) {
      const std::string tick = canvas.utf8 ? "✓ " : "* ";
      const std::string value = fmt::format(" {}", trail[i].answer);
      const int left = std::max(8, paint.width() - std::min(display_width(value), 40));
      frame.push_back(
          paint.two(fit_width(tick + trail[i].text, left, canvas.utf8), kDim, value, kMarked));
    }
    if (keep > 0) frame.emplace_back();
  }
  append(frame, std::move(top));
  append(frame, std::move(answers));
  append(frame, std::move(bottom));
  if (size(frame) > canvas.rows) frame.resize(static_cast<size_t>(std::max(1, canvas.rows)));
  return frame;
}

}  // namespace mtl
