// mtl config default, show and schema.
#include <string>

#include <doctest/doctest.h>

#include "cli/program.h"
#include "support/text.h"

using namespace mtl::test;

TEST_CASE("config default writes once and never overwrites") {
  Shell shell;
  const std::string path = (shell.dir() / kDefaultConfig).string();
  const Outcome first = shell.mtl({"config", "default", "--mixed_precision", "bf16"});
  CHECK(first.code == 0);
  CHECK(first.out == path + '\n');
  const std::string text = file_text(path);
  CHECK(has(text, "mixed_precision: bf16"));
  const Outcome second = shell.mtl({"config", "default"});
  CHECK(second.code == 0);
  CHECK(second.out == path + '\n');
  CHECK(has(second.err, "not overwritten"));
  CHECK(file_text(path) == text);

  const Outcome here = shell.mtl({"config", "default", "--config-file", "sub/here.yaml"});
  CHECK(here.code == 0);
  CHECK(has(file_text(shell.dir() / "sub/here.yaml"), "compute_environment"));

  const Outcome show = shell.mtl({"config", "show"});
  CHECK(show.code == 0);
  CHECK(has(show.out, path));
  CHECK(has(show.out, "precision.dtype=bf16"));
}

TEST_CASE("config show without a file, and with a broken one") {
  Shell shell;
  CHECK(shell.mtl({"config", "show"}).code == 0);
  CHECK(shell.mtl({"config", "show", "--config_file", "missing.yaml"}).code == 3);
  shell.write("bad.yaml", "num_proceses: 4\n");
  const Outcome bad = shell.mtl({"config", "show", "--config_file", "bad.yaml"});
  CHECK(bad.code == 3);
  CHECK(has(bad.err, "num_processes"));
  CHECK(has(bad.err, "bad.yaml:1"));
}

TEST_CASE("what is to be written into a file names the file that was given") {
  Shell shell;
  const std::string text =
      "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nuse_cpu: false\n";
  shell.write("my cluster.yaml", text);
  shell.write(kDefaultConfig, text);
  const std::map<std::string, std::string> no_gpu = {{"CUDA_VISIBLE_DEVICES", ""}};
  const std::string named = "mtl config set --config_file 'my cluster.yaml' num_processes=N\n";
  const Outcome checked = shell.mtl({"config", "validate", "my cluster.yaml"}, no_gpu);
  CAPTURE(checked.err);
  CHECK(has(checked.err, named));
  CHECK(has(shell.mtl({"launch", "--config_file", "my cluster.yaml", "--", "true"}, no_gpu).err,
            named));
  CHECK(has(shell.mtl({"launch", "--", "true"}, no_gpu).err,
            "write it: mtl config set num_processes=N\n"));
}

TEST_CASE("a file that is not there is the same error for all that read it") {
  Shell shell;
  shell.write("nothing.yaml", "");
  const std::vector<std::vector<std::string>> lines = {
      {"config", "show", "--config_file", "missing.yaml"},
      {"config", "update", "--config_file", "missing.yaml"},
      {"config", "validate", "missing.yaml"},
      {"config", "import", "missing.yaml"},
      {"config", "import", "--train", "train.yaml", "missing.yaml"},
      {"launch", "--dry-run", "--config_file", "missing.yaml", "nothing.yaml"},
      {"launch", "--dry-run", "missing.yaml"}};
  for (const std::vector<std::string>& line : lines) {
    const Outcome outcome = shell.mtl(line);
    CAPTURE(line[1]);
    CAPTURE(outcome.err);
    CHECK(outcome.code == 3);
    CHECK(has(outcome.err, "error[file.missing]: cannot read missing.yaml"));
  }
}

TEST_CASE("config schema is a JSON schema on stdout") {
  Shell shell;
  const Outcome schema = shell.mtl({"config", "schema"});
  CHECK(schema.code == 0);
  CHECK(schema.out[0] == '{');
  CHECK(has(schema.out, "micro_batch"));
}
