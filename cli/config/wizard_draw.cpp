// The frame of a question: what was answered or the file above it, its text, its answers, its keys.
#include <algorithm>
#include <iterator>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/config/wizard_view.h"
#include "common/terminal.h"
#include "common/utf8.h"

namespace mtl {

namespace {

using Lines = std::vector<std::string>;

void append(Lines& lines, Lines more) {
  lines.insert(lines.end(), std::make_move_iterator(more.begin()),
               std::make_move_iterator(more.end()));
}

int size(const Lines& lines) {
  return static_cast<int>(lines.size());
}

const char* mark(const Painter& paint) {
  return paint.utf8() ? "❯" : ">";
}

std::string keys_line(const Painter& paint, bool menu) {
  std::vector<const char*> keys = {"Enter", "Esc back", "? help", "Ctrl-C leaves"};
  if (paint.width() >= 74) {
    if (menu) {
      keys.insert(keys.begin(), "arrows, j k, digits, letters");
    } else {
      keys.front() = "Enter takes it";
      keys.insert(keys.begin() + 1, "Tab edits the proposal");
    }
  }
  return fmt::format("{}", fmt::join(keys, paint.utf8() ? " · " : " - "));
}

// What was answered before, as far back as `room` lines allow, and a line between.
Lines trail_lines(const Painter& paint, const std::vector<ConfigWizard::Said>& trail, int room) {
  Lines lines;
  if (room < 2) return lines;
  const size_t keep = std::min(static_cast<size_t>(room - 1), trail.size());
  for (size_t i = trail.size() - keep; i < trail.size(); ++i) {
    const std::string tick = paint.utf8() ? "✓ " : "* ";
    const std::string value = fmt::format(" {}", trail[i].answer);
    const int left = std::max(8, paint.width() - std::min(display_width(value), 40));
    lines.push_back(paint.two(fit_width(tick + trail[i].text, left, paint.utf8()), style::kDim,
                              value, style::kMarked));
  }
  if (!lines.empty()) lines.emplace_back();
  return lines;
}

}  // namespace

// The caret is a block of its own: the terminal's cursor is hidden.
std::string QuestionView::field(const Painter& paint) const {
  const std::string prompt = fmt::format("{} ", mark(paint));
  if (text_.empty()) {
    const std::string proposal =
        question_.preset.empty() ? std::string() : fmt::format(" [{}]", question_.preset);
    return paint.two(paint.color() ? prompt : prompt + "_", style::kMarked,
                     paint.color() ? fmt::format(" {}", proposal) : proposal, style::kDim);
  }
  if (display_width(text_) + 4 >= paint.width()) {  // its end is where people type
    std::string tail = text_;
    while (display_width(tail) + 5 >= paint.width() && !tail.empty()) {
      tail.erase(0, next_character(tail, 0));
    }
    return prompt + (paint.utf8() ? "…" : "~") + tail + "_";
  }
  const size_t end = next_character(text_, caret_);
  const std::string before = text_.substr(0, caret_), after = text_.substr(end);
  const std::string under = text_.substr(caret_, end - caret_);
  if (!paint.color()) return prompt + before + "_" + under + after;
  return paint.styled(prompt, style::kMarked) + before +
         paint.styled(under.empty() ? " " : under, style::kUnderCaret) + after;
}

QuestionView::Menu QuestionView::menu(const Painter& paint) const {
  Menu menu;
  // Hints stand below each other where all of them fit, else right behind their choice.
  int widest = 0, longest = 0;
  for (const Choice& choice : question_.choices) {
    widest = std::max(widest, display_width(choice.label));
    longest = std::max(longest, display_width(choice.hint));
  }
  const bool aligned = 4 + widest + 2 + longest <= paint.width();
  for (const size_t i : shown()) {
    const Choice& choice = question_.choices[i];
    const bool here = i == cursor_;
    if (here) menu.marked = size(menu.lines);
    const int gap = aligned ? widest - display_width(choice.label) + 2 : 2;
    const std::string hint =
        choice.hint.empty() ? "" : std::string(static_cast<size_t>(gap), ' ') + choice.hint;
    menu.lines.push_back(paint.two(
        fmt::format("{} {} {}", here ? mark(paint) : " ", question_.key_of(i), choice.label),
        here ? style::kMarked : "", hint, style::kDim));
  }
  if (filtering_) {
    const char* const none = shown().empty() ? " (in no choice; Esc shows all)" : "";
    menu.lines.push_back(
        paint.line(fmt::format("  with the letters: {}{}", filter_, none), style::kDim));
  }
  return menu;
}

std::vector<std::string> QuestionView::body_lines(const Painter& paint, int room) const {
  Lines lines;
  const int rows = std::max(0, room - 2);
  const int first = std::clamp(scrolled_, 0, std::max(0, size(body_) - rows));
  for (int i = first; i < std::min(size(body_), first + rows); ++i) {
    const std::string& text = body_[static_cast<size_t>(i)];
    lines.push_back(paint.line(text, text.starts_with("+ ")   ? style::kMarked
                                     : text.starts_with("- ") ? style::kWrong
                                     : text.starts_with("# ") ? style::kAside
                                                              : ""));
  }
  if (room < 2) return lines;
  const int more = size(body_) - rows;
  lines.push_back(
      more > 0 ? paint.line(fmt::format("({} more line{}: PgUp, PgDn)", more, more == 1 ? "" : "s"),
                            style::kDim)
               : std::string());
  return lines;
}

std::vector<std::string> QuestionView::draw(const Canvas& canvas,
                                            const std::vector<ConfigWizard::Said>& trail,
                                            const Comment& comment) const {
  const Painter paint(canvas);
  const bool is_menu = !question_.choices.empty();

  Lines top = paint.paragraph(question_.text, style::kBold, 0);
  if (!question_.note.empty()) append(top, paint.paragraph(question_.note, style::kDim, 0));
  if (help_) {
    append(top, paint.paragraph(
                    question_.help.empty() ? "There is no more to say about it." : question_.help,
                    style::kAside, 2));
  }

  Menu answers;
  if (is_menu) {
    answers = menu(paint);
  } else {
    answers.lines.push_back(field(paint));
    const std::string follows = comment ? comment(text_) : std::string();
    if (!follows.empty()) append(answers.lines, paint.paragraph(follows, style::kDim, 2));
  }

  Lines bottom;
  if (!wrong_.empty()) append(bottom, paint.paragraph(wrong_, style::kWrong, 2));
  bottom.emplace_back();
  bottom.push_back(paint.line(keys_line(paint, is_menu), style::kDim));

  // What does not fit goes: the trail first, then the body's and the menu's far ends.
  int room = std::max(4, canvas.rows) - 1 - size(top) - size(bottom);
  if (const int keep = std::max(1, room); size(answers.lines) > keep) {
    const int first = std::clamp(answers.marked - keep / 2, 0, size(answers.lines) - keep);
    answers.lines = {answers.lines.begin() + first, answers.lines.begin() + first + keep};
  }
  room -= size(answers.lines);

  Lines frame = body_.empty() ? trail_lines(paint, trail, room) : body_lines(paint, room);
  append(frame, std::move(top));
  append(frame, std::move(answers.lines));
  append(frame, std::move(bottom));
  if (size(frame) > canvas.rows) frame.resize(static_cast<size_t>(std::max(1, canvas.rows)));
  return frame;
}

}  // namespace mtl
