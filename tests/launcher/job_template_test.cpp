// Job templates: what Mustache says is rendered, and nothing is left out silently.
#include "launcher/job_template.h"

#include <fstream>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "support/temp_dir.h"

using namespace mtl;
using Json = nlohmann::ordered_json;

namespace {

std::string rendered(const std::string& text, const Json& values) {
  return render_job_template({"slurm/x", "", text}, values);
}

// "code line:column" of every fault.
std::vector<std::string> faults(const std::string& text, const Json& values,
                                std::string* words = nullptr) {
  std::vector<std::string> all;
  try {
    rendered(text, values);
  } catch (const Error& error) {
    CHECK(error.exit() == Exit::config);
    for (const Diagnostic& d : error.diagnostics()) {
      all.push_back(d.code + " " + std::to_string(d.place->line) + ":" +
                    std::to_string(d.place->column));
      if (words != nullptr) *words += d.what + " / " + d.help + "\n";
    }
  }
  return all;
}

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("a job template gets its values as they are") {
  const Json values = {{"name", "a<b>&\"c\" 'd'"}, {"nodes", 4}, {"big", 1.5}, {"on", true},
                       {"group", {{"x", 7}}},      {"empty", ""}};
  CHECK(rendered("{{name}}|{{{name}}}|{{& name }}", values) ==
        "a<b>&\"c\" 'd'|a<b>&\"c\" 'd'|a<b>&\"c\" 'd'");
  CHECK(rendered("{{nodes}} {{ big }} {{on}} {{group.x}}{{#group}} {{x}} {{nodes}}{{/group}}",
                 values) == "4 1.5 true 7 7 4");
  CHECK(rendered("[{{empty}}]{{! nobody }}", values) == "[]");
  CHECK(rendered("no tag, } {", values) == "no tag, } {");
  CHECK(rendered("{{name}}", {{"name", "{{nodes}}"}}) == "{{nodes}}");
}

TEST_CASE("sections of a job template, and the lines that they leave") {
  const Json values = {{"on", true},
                       {"off", false},
                       {"empty", ""},
                       {"none", nullptr},
                       {"zero", 0},
                       {"word", "w"},
                       {"list", {"a", "b"}},
                       {"mounts", Json::array({{{"from", "x"}}, {{"from", "y"}}})},
                       {"nothing", Json::array()}};
  CHECK(rendered("a\n{{#on}}\nb\n{{/on}}\n\nc\n", values) == "a\nb\n\nc\n");
  CHECK(rendered("a\n  {{#off}}\nb\n{{/off}}\n\nc\n", values) == "a\n\nc\n");
  CHECK(rendered("a\n{{! said\nin two lines }}\nc\n", values) == "a\nc\n");
  CHECK(rendered("{{#on}}{{#list}}\n- {{.}}\n{{/list}}{{/on}}\nend", values) == "- a\n- b\nend");
  CHECK(rendered("{{#mounts}}{{from}},{{/mounts}}", values) == "x,y,");
  CHECK(rendered("{{#word}}--w={{word}}{{/word}}{{#zero}} {{zero}}{{/zero}}", values) == "--w=w 0");
  CHECK(rendered("{{^off}}1{{/off}}{{^empty}}2{{/empty}}{{^none}}3{{/none}}{{^nothing}}4"
                 "{{/nothing}}{{^on}}5{{/on}}",
                 values) == "1234");
  // What is off is not asked for; what its elements would have cannot be known.
  CHECK(rendered("{{#none}}{{none}}{{/none}}{{#nothing}}{{whatever}}{{/nothing}}", values).empty());
}

TEST_CASE("every fault of a job template is told with its place") {
  const Json values = {{"partition", "p"},
                       {"time", nullptr},
                       {"off", false},
                       {"list", Json::array({{{"a", 1}}, {{"b", 2}}})}};
  std::string words;
  CHECK(faults("{{partition}}\n \xc3\xa4{{partitoin}} {{time}}\n{{#off}}{{tine}}{{/off}}", values,
               &words) ==
        Words{"template.unknown_tag 2:3", "template.unfilled 2:17", "template.unknown_tag 3:9"});
  CHECK(words.find("did you mean partition?") != std::string::npos);
  CHECK(words.find("did you mean time?") != std::string::npos);
  // Said once, however often it is rendered.
  CHECK(faults("{{#list}}{{a}}{{/list}}", values) == Words{"template.unfilled 1:10"});
  CHECK(faults("{{list}}", values) == Words{"template.syntax 1:1"});
  CHECK(faults("{{#off}}x", values) == Words{"template.syntax 1:1"});
  CHECK(faults("x{{/off}}", values) == Words{"template.syntax 1:2"});
  CHECK(faults("{{#off}}\n{{/of}}\n{{/off}}", values) == Words{"template.syntax 2:1"});
  CHECK(faults("{{>part}}\n{{=<% %>=}}\n{{a b}}{{}}{{..}}\n{{partition", values) ==
        Words{"template.syntax 1:1", "template.syntax 2:1", "template.syntax 3:1",
              "template.syntax 3:8", "template.syntax 3:12", "template.syntax 4:1"});
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "{{^off}}";
  CHECK(faults(deep, values).size() >= 1);
}

TEST_CASE("templates of a folder of one's own stand in for those of the program") {
  const mtl::test::TempDir dir;
  const std::filesystem::path folder = dir.path() / "mine";
  std::filesystem::create_directories(folder / "slurm");
  const auto code = [&](const std::string& name, const std::filesystem::path& where) {
    try {
      load_job_template(name, where.string());
    } catch (const Error& error) {
      return error.diagnostics()[0].code;
    }
    return std::string("none");
  };
  CHECK(code("slurm/nothing", "") == "template.missing");
  CHECK(code("slurm/mine.sbatch", folder) == "template.missing");  // it has no template at all
  std::ofstream(folder / "slurm" / "mine.sbatch") << "x {{y}}\n{{z}}";
  const JobTemplate mine = load_job_template("slurm/mine.sbatch", folder.string());
  CHECK(mine.text == "x {{y}}\n{{z}}");
  try {
    render_job_template(mine, {{"y", 1}});
    FAIL("rendered");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].place->file == (folder / "slurm" / "mine.sbatch").string());
    CHECK(error.diagnostics()[0].place->line == 2);
  }
  for (const std::string& name : job_template_names()) {
    CHECK(load_job_template(name, "").text.size() > 0);
  }
}
