#include "cli/help/manual.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include <fmt/format.h>

#include "cli/command_description.h"
#include "cli/commands.h"
#include "cli/help/help.h"
#include "common/text.h"
#include "launcher/settings/launch_flags.h"
#include "runtime/spec/spec_keys.h"

namespace mtl {

namespace {

using Rows = CommandDescription::Rows;

constexpr const char* kAbout = "plan, launch and train language models on one machine or many";

const Rows& environment_rows() {
  static const Rows kRows = {
      {"MTL_NUM_PROCESSES, MTL_CONFIG_FILE, ...",
       "every flag of `mtl launch` has a variable of its name; see mtl-launch(1)"},
      {"MTL_TRAIN__STEPS, MTL_MODEL__NORM__EPS, ...",
       "`train.steps`, `model.norm.eps`: every key of a `train.yaml`; see mtl-train.yaml(5)"},
      {"MTL_DEVICE", "`auto`, `cpu` or `cuda`: what ranks compute on"},
      {"XDG_CONFIG_HOME, HF_HOME", "where `default_config.yaml` is looked for; see FILES"},
      {"XDG_STATE_HOME", "where `mtl ps` keeps what was started"},
      {"NO_COLOR, CLICOLOR_FORCE", "forbid and force colour"},
      {"COLUMNS", "width of the text where there is no terminal"},
  };
  return kRows;
}

const Rows& file_rows() {
  static const Rows kRows = {
      {"train.yaml", "what to train; any name that ends in .yaml; see mtl-train.yaml(5)"},
      {"~/.config/mtl/default_config.yaml",
       "where to run, as `mtl config` writes it; in accelerate's format"},
      {"~/.cache/huggingface/accelerate/default_config.yaml",
       "accelerate's own, which is read where there is no other"},
      {"runs/NAME/ID/",
       "a run: train.yaml as given, resolved.yaml with the origin of each value, report.html, "
       "status.json, metrics.jsonl, events.jsonl, generated.jsonl, tb/ for TensorBoard, logs/, "
       "checkpoints/step-N/"},
      {"~/.local/state/mtl/jobs/", "what was started, for `mtl ps`, `stop` and `logs`"},
  };
  return kRows;
}

// Sentence by sentence, a capital first and a full stop last.
std::string sentence(std::string text) {
  if (text.empty()) return text;
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  if (!text.ends_with('.') && !text.ends_with(':')) text += '.';
  return text;
}

std::string default_words(const std::string& built_in) {
  if (built_in.empty()) return {};
  const bool required = built_in.ends_with("required");
  return required ? sentence(built_in) : fmt::format("Default: {}.", built_in);
}

std::string option_text(const OptionDeclaration& option) {
  if (option.shown_default.empty()) return option.help;
  return fmt::format("{} [default: {}]", option.help, option.shown_default);
}

void add_synopsis(ManPage& page, const CommandDescription& description) {
  std::vector<std::string> rows;
  for (const std::string& usage : description.usage) rows.push_back("mtl " + usage);
  page.synopsis("mtl " + description.command(), rows);
}

void add_option_groups(ManPage& page, const CommandDescription& description) {
  for (size_t group = 0; group < description.groups.size(); ++group) {
    bool titled = group == 0;  // the section that it stands in has its title
    for (const OptionDeclaration& option : description.options) {
      if (option.hidden || option.group != group) continue;
      if (!titled) page.subsection(description.groups[group]);
      titled = true;
      page.option(option_words(option), option_text(option));
    }
  }
}

void add_examples(ManPage& page, const CommandDescription& description) {
  for (const auto& [command, what] : description.examples) {
    if (what.empty()) {
      page.verbatim({command});
    } else {
      page.tagged(command, what);
    }
  }
}

// The flags of a launch that its help leaves to `mtl help launch-flags`.
void add_other_flags(ManPage& page, const CommandDescription& description) {
  page.section("OTHER OPTIONS");
  page.paragraph(
      "Those that are seldom typed. Each option of this page may also stand in the environment, as "
      "MTL_ and its name in capitals, and most in the configuration file.");
  for (int group = 0; group <= static_cast<int>(FlagGroup::elsewhere); ++group) {
    bool titled = false;
    for (const LaunchFlag& flag : launch_flags()) {
      bool negated = false;
      const OptionDeclaration* option = description.option(flag.name, negated);
      if (static_cast<int>(flag.group) != group || option == nullptr || !option->hidden) continue;
      if (!titled) page.subsection(group_title(flag.group));
      titled = true;
      page.option(option_words(*option), option_text(*option));
    }
  }
}

ManPage page_of_command(const Command& command, const std::string& date) {
  const CommandDescription description = describe({command.name});
  ManPage page(fmt::format("mtl-{}", command.name), 1, date, command.summary);
  page.section("SYNOPSIS");
  add_synopsis(page, description);
  page.section("DESCRIPTION");
  page.paragraph(description.about);
  const bool is_group = !description.members.empty();
  if (!is_group) {
    for (const PositionalDeclaration& positional : description.positionals) {
      page.tagged(positional.name, positional.help);
    }
  }
  if (is_group) page.section("COMMANDS");
  for (const auto& [name, what] : description.members) {
    const CommandDescription member = describe({command.name, name});
    page.subsection(fmt::format("mtl {} {}", command.name, name));
    add_synopsis(page, member);
    page.paragraph(member.about);
    for (const PositionalDeclaration& positional : member.positionals) {
      page.tagged(positional.name, positional.help);
    }
    for (const OptionDeclaration& option : member.options) {
      if (!option.hidden) page.option(option_words(option), option_text(option));
    }
    for (const std::string& note : member.footnotes) page.paragraph(note);
    add_examples(page, member);
  }
  page.section("OPTIONS");
  add_option_groups(page, description);
  page.option("-h, --help", "print a shorter form of this text");
  for (const std::string& note : description.footnotes) page.paragraph(note);
  if (const std::string spelled = spelling_words(description); !spelled.empty()) {
    page.paragraph("Options may be written with underscores or dashes: " + spelled + '.');
  }
  const bool launches = std::string_view(command.name) == "launch";
  if (launches) add_other_flags(page, description);
  if (!description.examples.empty()) {
    page.section("EXAMPLES");
    add_examples(page, description);
  }
  page.section("EXIT STATUS");
  page.paragraph(
      "0 when it is done, else the number of what went wrong: the same for every command, see "
      "mtl(1).");
  page.section("SEE ALSO");
  const auto& usage = description.usage;
  const bool trains = std::any_of(usage.begin(), usage.end(), [](const std::string& line) {
    return line.find("train.yaml") != std::string::npos;
  });
  page.paragraph(trains ? "mtl(1), mtl-train.yaml(5)" : "mtl(1)");
  return page;
}

ManPage page_of_mtl(const std::vector<ManPage>& others, const std::string& date) {
  ManPage page("mtl", 1, date, kAbout);
  page.section("SYNOPSIS");
  page.synopsis("mtl", {"mtl COMMAND [options]", "mtl help [TOPIC | COMMAND]", "mtl --version"});
  page.section("DESCRIPTION");
  page.paragraph(
      "One program from \"these machines, this text\" to a trained language model: it plans the "
      "run, starts the processes, trains, checkpoints and resumes. mtl config says where to run, a "
      "train.yaml says what to train, mtl launch train.yaml trains it; the same launch again "
      "continues the run. mtl launch also starts any other program, with the flags and the "
      "environment of torchrun and accelerate.");
  page.section("COMMANDS");
  for (const ManPage& other : others) {
    if (other.section_number() != 1) continue;
    page.tagged(other.name() + "(1)", other.about());
  }
  for (const HelpTopic& topic : help_topics()) {
    if (topic.text.empty()) continue;
    page.section(topic.name == "exit-codes" ? "EXIT STATUS"
                 : topic.name == "errors"   ? "DIAGNOSTICS"
                                            : upper(topic.name));
    page.help_text(topic.text);
  }
  page.section("ENVIRONMENT");
  for (const auto& [name, what] : environment_rows()) page.tagged(name, what);
  page.section("FILES");
  for (const auto& [name, what] : file_rows()) page.tagged(name, what);
  page.section("EXAMPLES");
  page.paragraph("A first model, on this machine:");
  page.indent();
  page.verbatim({"mtl config default", "mtl recipes cp char-shakespeare",
                 "mtl launch train.yaml data.train=my.txt run.name=mine",
                 "mtl generate runs/mine \"Once upon\""});
  page.unindent();
  page.section("SEE ALSO");
  std::string see;
  for (const ManPage& other : others) {
    see += fmt::format("{}{}({})", see.empty() ? "" : ", ", other.name(), other.section_number());
  }
  page.paragraph(see);
  return page;
}

ManPage page_of_train_yaml(const std::string& date) {
  ManPage page("mtl-train.yaml", 5, date, "what mtl trains");
  page.section("DESCRIPTION");
  page.paragraph(
      "A train.yaml says what `mtl launch` trains: the model, the data, how its steps are made, "
      "and "
      "how ranks share the work. `mtl recipes` has files to begin with. A key that is not on this "
      "page is an error, with the nearest key that is.");
  page.paragraph(
      "The file is YAML read strictly: duplicate keys, anchors, merge keys, tags and further "
      "documents are errors. Integers may be written `1_000` or `1e9`; those marked k, M, G also "
      "`10k`, `2M`, `1G` (thousands, millions, thousand millions). A map like `{0: 8, 4: 4}` says "
      "what holds from a step or epoch on. `auto` is what a key is when it is not written.");
  page.paragraph(
      "Each key may also stand in the environment (`MTL_TRAIN__STEPS=5` is `train.steps`) and "
      "behind "
      "the file on the command line (`train.steps=5`), which wins. `mtl launch --dry-run` shows "
      "every value and where it comes from; `mtl config schema` prints the JSON Schema.");
  const std::vector<SpecKey> keys = described_keys();
  for (const SpecSection& section : described_sections()) {
    if (section.name.find('.') != std::string::npos) continue;
    page.section(upper(section.name));
    page.paragraph(section.doc);
    for (const SpecKey& key : keys) {
      if (!key.key.starts_with(section.name + '.')) continue;
      page.tagged(key.key, key.doc);
      const bool explained = std::any_of(key.values.begin(), key.values.end(),
                                         [](const auto& value) { return !value.doc.empty(); });
      page.indent();
      if (explained) {
        for (const SpecKey::Value& value : key.values) page.tagged(value.value, value.doc);
      }
      std::string words;
      for (const SpecKey::Value& value : key.values) {
        words += fmt::format("{}`{}`", words.empty() ? "" : ", ", value.value);
      }
      const std::string type = explained && key.type == words ? "" : sentence(key.type) + ' ';
      page.paragraph(type + default_words(key.built_in));
      page.unindent();
    }
  }
  page.section("SEE ALSO");
  page.paragraph("mtl(1), mtl-config(1), mtl-launch(1), mtl-plan(1), mtl-recipes(1)");
  return page;
}

}  // namespace

std::vector<ManPage> manual_pages(const std::string& date) {
  std::vector<ManPage> pages;
  for (const Command& command : commands()) {
    if (command.summary != nullptr) pages.push_back(page_of_command(command, date));
  }
  pages.push_back(page_of_train_yaml(date));
  pages.insert(pages.begin(), page_of_mtl(pages, date));
  return pages;
}

}  // namespace mtl
