// mtl config: the questions, in a terminal key by key, or line by line on a dumb one and from a
// pipe. What is asked stands in launcher/config/config_questions*.cpp.
#include "launcher/config/config_wizard.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <poll.h>
#include <unistd.h>
#include <utility>

#include <sys/ioctl.h>

#include <fmt/format.h>

#include "cli/config/config_file.h"
#include "cli/config/wizard_view.h"
#include "common/error.h"
#include "common/files.h"
#include "common/keys.h"
#include "common/terminal.h"
#include "common/text.h"
#include "launcher/settings/launch_config_place.h"
#include "runtime/spec/train_spec.h"

namespace mtl {

namespace {

constexpr int kLeft = 130;  // as a shell says it of Ctrl-C

// The file that is there: its text, and what it says if it can be read.
struct Before {
  bool exists = false;
  std::string text;
  std::optional<LaunchConfig> config;
};

Before read_before(const std::string& path) {
  Before before;
  std::error_code ignored;
  before.exists = std::filesystem::exists(path, ignored);
  const std::string source = before.exists ? path : default_launch_config_path();
  if (source.empty()) return before;
  Diagnostics diagnostics;
  LaunchConfig config = read_launch_config(source, diagnostics);
  if (!diagnostics.has_errors()) before.config = std::move(config);
  if (before.exists) before.text = read_file(path);
  return before;
}

// The last question: what happens with the file.
Question review_question(const std::string& path, const Before& before, const std::string& text,
                         bool has_more) {
  Question question;
  question.id = "write";
  const bool same = before.exists && before.text == text;
  question.text = same            ? fmt::format("{} says all this already. Write it again?", path)
                  : before.exists ? fmt::format("{} is there. Replace it?", path)
                                  : fmt::format("Write {}?", path);
  question.help =
      "Write: the file appears whole or not at all, readable by you only. More settings: what is "
      "rarely wanted; until then the usual values stand. Nothing is written before you say so.";
  question.choices.push_back({"write", before.exists ? "replace it" : "write it"});
  if (has_more) question.choices.push_back({"more", "more settings first"});
  question.choices.push_back({"back", "go back"});
  question.choices.push_back({"quit", "leave without writing"});
  question.preset = "write";
  return question;
}

std::vector<std::string> review_body(const Before& before, const LaunchConfig& config) {
  const std::string text = launch_config_yaml(config);
  std::vector<std::string> body = before.exists ? line_changes(before.text, text) : lines_of(text);
  for (const std::string& line : config_decisions(config))
    body.push_back(fmt::format("# {}", line));
  return body;
}

// What both ways of asking do: true = write.
struct Asker {
  virtual ~Asker() = default;
  // The answer; nothing = Ctrl-C. `review`: the lines of the file, else null.
  struct Reply {
    enum class Kind { answer, back, quit } kind = Kind::answer;
    std::string text;
  };
  virtual Reply ask(const ConfigWizard& wizard, const Question& question,
                    const std::vector<std::string>* body) = 0;
  // The last answer cannot be. True: it is asked again.
  virtual bool refuse(const Question& question, const std::string& sentence) = 0;
};

bool run(ConfigWizard& wizard, const std::string& path, const Before& before, Asker& asker) {
  while (true) {
    if (wizard.at_review()) {
      const LaunchConfig config = wizard.config();
      const Question question =
          review_question(path, before, launch_config_yaml(config), wizard.has_more());
      const std::vector<std::string> body = review_body(before, config);
      const Asker::Reply reply = asker.ask(wizard, question, &body);
      if (reply.kind == Asker::Reply::Kind::quit) return false;
      const auto choice = reply.kind == Asker::Reply::Kind::back
                              ? std::nullopt
                              : question.match(reply.text.empty() ? question.preset : reply.text);
      if (reply.kind == Asker::Reply::Kind::back) {
        wizard.back();
      } else if (!choice) {
        asker.refuse(question, fmt::format("'{}' is none of the choices.", reply.text));
      } else if (question.choices[*choice].value == "write") {
        return true;
      } else if (question.choices[*choice].value == "more") {
        wizard.open_more();
      } else if (question.choices[*choice].value == "back") {
        wizard.back();
      } else {
        return false;
      }
      continue;
    }
    const Question question = wizard.question();
    const Asker::Reply reply = asker.ask(wizard, question, nullptr);
    switch (reply.kind) {
      case Asker::Reply::Kind::quit:
        return false;
      case Asker::Reply::Kind::back:
        wizard.back();
        break;
      case Asker::Reply::Kind::answer:
        if (const auto wrong = wizard.answer(reply.text)) asker.refuse(question, *wrong);
        break;
    }
  }
}

// Key by key, on a screen of its own.
class TerminalAsker final : public Asker {
 public:
  TerminalAsker()
      : terminal_(STDIN_FILENO, STDERR_FILENO), facts_(inspect_terminal(STDERR_FILENO)) {}

  Reply ask(const ConfigWizard& wizard, const Question& question,
            const std::vector<std::string>* body) override {
    QuestionView view(question, body != nullptr ? *body : std::vector<std::string>());
    if (!refused_.empty() && refused_for_ == question.id) {
      view.fail(refused_);
      if (question.choices.empty()) view.type(last_);
    }
    refused_.clear();
    const auto comment = [&](const std::string& typed) {
      return body != nullptr ? std::string() : wizard.comment(typed);
    };
    while (true) {
      draw(view.draw(canvas(), wizard.said(), comment));
      const Key key = terminal_.read();
      if (key.kind == Key::Kind::resize) continue;
      switch (view.key(key)) {
        case QuestionView::Event::none:
          break;
        case QuestionView::Event::answer:
          last_ = view.answer();
          return {Reply::Kind::answer, last_};
        case QuestionView::Event::back:
          return {Reply::Kind::back, {}};
        case QuestionView::Event::quit:
          return {Reply::Kind::quit, {}};
        case QuestionView::Event::suspend:
          terminal_.suspend();
          break;
      }
    }
  }
  bool refuse(const Question& question, const std::string& sentence) override {
    refused_ = sentence;
    refused_for_ = question.id;
    return true;
  }

 private:
  Canvas canvas() const {
    winsize size{};
    Canvas canvas{.columns = 80, .rows = 24, .color = facts_.color, .utf8 = facts_.utf8};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0) {
      canvas.columns = size.ws_col;
      canvas.rows = size.ws_row;
    }
    return canvas;
  }
  // All of it, from the top: whatever a resize has done to the screen is gone.
  static void draw(const std::vector<std::string>& lines) {
    std::string text = "\x1b[H";
    for (size_t i = 0; i < lines.size(); ++i) {
      text += lines[i] + "\x1b[K";
      if (i + 1 < lines.size()) text += "\r\n";
    }
    write(text + "\x1b[J");
  }
  static void write(const std::string& text) {
    size_t done = 0;
    while (done < text.size()) {
      const ssize_t now = ::write(STDERR_FILENO, text.data() + done, text.size() - done);
      if (now < 0 && errno == EINTR) continue;
      if (now <= 0) return;
      done += static_cast<size_t>(now);
    }
  }

  RawTerminal terminal_;
  Terminal facts_;
  std::string refused_, refused_for_, last_;
};

volatile sig_atomic_t g_interrupted = 0;

// Numbered lists and typed lines.
class LineAsker final : public Asker {
 public:
  LineAsker() : is_tty_(isatty(STDIN_FILENO) == 1), columns_(terminal_columns(STDERR_FILENO)) {
    // Only while an answer is waited for, so that none comes between looking for it and waiting.
    sigset_t interrupt;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &mask_before_);
    waiting_ = mask_before_;
    sigdelset(&waiting_, SIGINT);
    struct sigaction action {};
    sigemptyset(&action.sa_mask);
    action.sa_handler = [](int) { g_interrupted = 1; };  // ppoll() returns then
    sigaction(SIGINT, &action, &before_);
  }
  ~LineAsker() override {
    sigaction(SIGINT, &before_, nullptr);
    sigprocmask(SIG_SETMASK, &mask_before_, nullptr);
  }

  Reply ask(const ConfigWizard& wizard, const Question& question,
            const std::vector<std::string>* body) override {
    if (body != nullptr) {
      std::string text = "\n";
      for (const std::string& line : *body) text += fmt::format("  {}\n", line);
      print(text);
    }
    show(question);
    ++number_;
    while (true) {
      print(question.preset.empty() ? std::string("> ")
                                    : fmt::format("[{}] > ", shown_preset(question)));
      std::string line;
      if (!read_line(line)) {
        print("\n");
        if (g_interrupted != 0) return {Reply::Kind::quit, {}};
        throw Error(
            Exit::usage,
            {.code = "config.input_ended",
             .what = fmt::format("the answers ended at question {}: {}", number_, question.text),
             .notes = {"nothing was written"},
             .help = "a line for each question, an empty one takes what is in brackets; "
                     "without questions: mtl config --no-input"});
      }
      if (!is_tty_) print(line + "\n");  // so that what was asked and answered can be read
      if (line == "<") return {Reply::Kind::back, {}};
      if (line == "?") {
        print(wrap_text(question.help, width(), 2, 0) + "\n");
        continue;
      }
      if (line.empty()) return {Reply::Kind::answer, {}};
      if (const std::string comment = body != nullptr ? "" : wizard.comment(line);
          !comment.empty()) {
        print(fmt::format("  {}\n", comment));
      }
      return {Reply::Kind::answer, line};
    }
  }
  bool refuse(const Question& question, const std::string& sentence) override {
    if (is_tty_) {
      print(wrap_text(sentence, width(), 0, 0) + "\n");
      return true;
    }
    // The next line belongs to the next question.
    throw Error(Exit::usage,
                {.code = "config.answer",
                 .what = fmt::format("question {}: {}: {}", number_, question.text, sentence),
                 .notes = {"nothing was written"},
                 .help = "correct that line of the answers"});
  }

 private:
  int width() const { return std::min(std::max(columns_, 20), 100); }
  static std::string shown_preset(const Question& question) {
    for (size_t i = 0; i < question.choices.size(); ++i) {
      if (question.choices[i].value == question.preset) return question.key_of(i);
    }
    return question.preset;
  }
  static void print(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }
  void show(const Question& question) const {
    std::string text = fmt::format("\n{}\n", wrap_text(question.text, width(), 0, 0));
    if (!question.note.empty())
      text += wrap_text(fmt::format("({})", question.note), width(), 0, 0) + "\n";
    for (size_t i = 0; i < question.choices.size(); ++i) {
      const Choice& choice = question.choices[i];
      const std::string line =
          fmt::format("{}) {}{}", question.key_of(i), choice.label,
                      choice.hint.empty() ? std::string() : fmt::format(" - {}", choice.hint));
      text += fmt::format("  {}\n", wrap_text(line, width(), 5, 2));
    }
    print(text);
  }
  // False at the end of the input, or after Ctrl-C.
  bool read_line(std::string& line) const {
    line.clear();
    while (true) {
      pollfd input{STDIN_FILENO, POLLIN, 0};
      if (::ppoll(&input, 1, nullptr, &waiting_) < 0) {
        if (errno == EINTR && g_interrupted == 0) continue;
        return false;
      }
      char c = 0;
      const ssize_t got = ::read(STDIN_FILENO, &c, 1);  // no further: the rest is not ours
      if (got < 0) return false;
      if (got == 0) return !line.empty();
      if (c == '\n') return true;
      if (c != '\r') line += c;
      if (line.size() > 4096) return true;
    }
  }

  const bool is_tty_;
  const int columns_;
  int number_ = 0;
  struct sigaction before_ {};
  sigset_t mask_before_, waiting_;
};

// What is wrong with the file is not asked here.
ModelFacts model_here() {
  const std::string file = "train.yaml";
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(file, ignored)) return {};
  Diagnostics problems;
  const ResolvedSpec resolved = load_spec({.train_yaml = file}, problems);
  if (problems.has_errors()) return {};
  return {file, resolved.spec.model.heads, resolved.spec.model.layers};
}

}  // namespace

int config_wizard(const std::string& named) {
  const std::string path = config_target(named);
  const Before before = read_before(path);
  MachineFacts facts =
      inspect_machine([](const char* name) { return static_cast<const char*>(std::getenv(name)); });
  facts.model = model_here();
  ConfigWizard wizard(std::move(facts), before.config ? &*before.config : nullptr);
  const bool by_key = isatty(STDIN_FILENO) == 1 && inspect_terminal(STDERR_FILENO).redraw;
  std::unique_ptr<Asker> asker;
  if (by_key) {
    asker = std::make_unique<TerminalAsker>();
  } else {
    asker = std::make_unique<LineAsker>();
  }
  const bool write = run(wizard, path, before, *asker);
  asker.reset();  // the screen is as it was
  if (!write) {
    fmt::print(stderr, "nothing was written\n");
    return kLeft;
  }
  const LaunchConfig config = wizard.config();
  write_config(path, config);
  for (const std::string& line : config_decisions(config)) fmt::print(stderr, "{}\n", line);
  return 0;
}

}  // namespace mtl
