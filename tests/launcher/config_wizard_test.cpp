// The questions of mtl config without a terminal: what is proposed, what is refused, what follows.
#include "launcher/config/config_wizard.h"

#include <set>

#include <doctest/doctest.h>

#include "launcher/config/config_edit.h"
#include "launcher/request/launch_request.h"
#include "support/text.h"

using namespace mtl;

namespace {

MachineFacts gpus(int count) {
  MachineFacts facts;
  facts.gpus = count;
  facts.gpu_name = "H100";
  facts.cores = 16;
  return facts;
}

// Answers until `id` is asked, with the proposals where nothing is given.
void go_to(ConfigWizard& wizard, const std::string& id,
           const std::map<std::string, std::string>& answers) {
  for (int i = 0; i < 100 && !wizard.at_review(); ++i) {
    const Question question = wizard.question();
    if (question.id == id) return;
    const auto given = answers.find(question.id);
    const auto wrong = wizard.answer(given != answers.end() ? given->second : "");
    REQUIRE_MESSAGE(!wrong, question.id << ": " << wrong.value_or(""));
  }
}

std::string refusal(ConfigWizard& wizard, const std::string& text) {
  return wizard.answer(text).value_or("");
}

using mtl::test::has;

}  // namespace

TEST_CASE("common cases need nine questions or fewer") {
  using Answers = std::map<std::string, std::string>;
  for (const Answers& answers :
       {Answers{}, Answers{{"type", "NO"}}, Answers{{"engine", "MEGATRON_LM"}, {"pp", "2"}},
        Answers{{"engine", "FSDP"}}, Answers{{"engine", "DEEPSPEED"}},
        Answers{{"place", "ssh"}, {"hosts", "a,b"}},
        Answers{{"place", "ssh"}, {"hosts", "a:8,b:8"}, {"engine", "MEGATRON_LM"}},
        Answers{{"place", "each"}, {"ip", "n0"}}, Answers{{"place", "slurm"}, {"nodes", "4"}}}) {
    ConfigWizard wizard(gpus(8), nullptr);
    go_to(wizard, "", answers);
    CHECK(wizard.at_review());
    CHECK(wizard.asked() <= 9);
  }
}

TEST_CASE("what the machine has is proposed") {
  ConfigWizard wizard(gpus(8), nullptr);
  go_to(wizard, "", {});
  const LaunchConfig config = wizard.config();
  CHECK(config.distributed_type == "MULTI_GPU");
  CHECK(config.num_processes == 8);
  CHECK(config.mixed_precision == "bf16");
  ConfigWizard bare(gpus(0), nullptr);
  go_to(bare, "", {});
  CHECK(bare.config().distributed_type == "NO");
  CHECK(bare.config().use_cpu);
  MachineFacts slurm = gpus(4);
  slurm.slurm_nodes = 3;
  slurm.slurm_rank = 2;
  slurm.slurm_first = "node17";
  ConfigWizard job(slurm, nullptr);
  go_to(job, "", {});
  CHECK(job.config().num_machines == 3);
  CHECK(job.config().machine_rank == 2);
  CHECK(job.config().main_process_ip == "node17");
  CHECK(job.config().num_processes == 12);
  CHECK(hosts_of_ssh_config("Host a b\n  HostName x\nhost = c*  d !e\nMatch host f\nHost a\n") ==
        std::vector<std::string>{"a", "b", "d"});
}

TEST_CASE("SLURM jobs: what sbatch would not take is said and nothing of it stays behind") {
  ConfigWizard wizard(gpus(8), nullptr);
  go_to(wizard, "partition", {{"place", "slurm"}, {"nodes", "4"}});
  CHECK(has(refusal(wizard, "a b"), "'a b' is no partition for SLURM"));
  CHECK_FALSE(wizard.answer("gpu,long"));
  go_to(wizard, "time", {{"account", "lab"}});
  CHECK(has(refusal(wizard, "soon"), "'soon' is no time for SLURM"));
  CHECK_FALSE(wizard.answer("1-12:00:00"));
  go_to(wizard, "", {{"processes", "32"}});
  LaunchConfig config = wizard.config();
  const std::map<std::string, std::string> own = {{"via", "slurm"},
                                                  {"slurm_partition", "gpu,long"},
                                                  {"slurm_account", "lab"},
                                                  {"slurm_time", "1-12:00:00"}};
  CHECK(config.own == own);
  CHECK(config.num_machines == 4);
  CHECK(config.num_processes == 32);
  // The next time it is proposed, and another place takes it all away.
  ConfigWizard again(gpus(8), &config);
  CHECK(again.question().preset == "slurm");
  go_to(again, "", {});
  CHECK(again.config().own == own);
  ConfigWizard elsewhere(gpus(8), &config);
  go_to(elsewhere, "", {{"place", "here"}});
  CHECK(elsewhere.config().own.empty());
}

TEST_CASE("degrees are seen beside the links and the model that are here") {
  MachineFacts facts = gpus(8);
  facts.tp_wise = {2, 4, 8};
  facts.model = {"train.yaml", 12, 10};
  ConfigWizard wizard(facts, nullptr);
  go_to(wizard, "tp", {{"engine", "MEGATRON_LM"}});
  CHECK(has(wizard.question().note, "fast enough for 2, 4, 8"));
  CHECK(wizard.comment("4") == "3 of the 12 heads in train.yaml");
  CHECK(wizard.comment("8") == "does not divide the 12 heads in train.yaml");
  CHECK(wizard.comment("1").empty());
  CHECK_FALSE(wizard.answer("8"));  // another train.yaml may be meant
  CHECK(wizard.question().id == "pp");
  CHECK(wizard.comment("2") == "5 of the 10 layers in train.yaml");
  CHECK(wizard.comment("3") == "at most 4 of the 10 layers in train.yaml");
  CHECK(wizard.comment("11") == "more than the 10 layers in train.yaml");
  ConfigWizard without(gpus(8), nullptr);
  go_to(without, "tp", {{"engine", "MEGATRON_LM"}});
  CHECK(without.question().note.empty());
  CHECK(without.comment("8").empty());
}

TEST_CASE("every answer is looked at when it is given") {
  ConfigWizard each(gpus(0), nullptr);
  go_to(each, "machines", {{"place", "each"}});
  CHECK(has(refusal(each, "1"), "at least 2"));
  CHECK(has(refusal(each, "-3"), "at least 2"));
  CHECK(has(refusal(each, "two"), "no whole number"));
  CHECK(refusal(each, "2").empty());
  CHECK(has(refusal(each, "2"), "count from 0 to 1"));
  CHECK(refusal(each, "1").empty());
  CHECK(has(refusal(each, ""), "needed"));
  for (const char* wrong :
       {"1234", "10.0.0", "10.0.0.256", "a b", "a:1", "[::1]", "a/b", "10.0.0.1."}) {
    CAPTURE(wrong);
    CHECK_FALSE(refusal(each, wrong).empty());
  }
  CHECK(refusal(each, "fd00::1").empty());
  CHECK(has(refusal(each, "5"), "none of the choices"));
  go_to(each, "", {{"type", "MULTI_GPU"}, {"processes", "4"}});
  each.open_more();
  CHECK(each.question().id == "port");
  for (const char* wrong : {"0", "65536", "99999999", "x"})
    CHECK_FALSE(refusal(each, wrong).empty());
  CHECK(refusal(each, "65535").empty());

  ConfigWizard ssh(gpus(0), nullptr);
  go_to(ssh, "hosts", {{"place", "ssh"}});
  for (const char* wrong : {"a,,", "a:x", "a,a", "a:4,b"}) {
    CAPTURE(wrong);
    CHECK_FALSE(refusal(ssh, wrong).empty());
  }
  CHECK(refusal(ssh, "a,b").empty());
  go_to(ssh, "processes", {{"engine", "MEGATRON_LM"}, {"tp", "4"}});
  CHECK(has(refusal(ssh, "6"), "tp 4 x pp 1"));
  CHECK(has(refusal(ssh, "4000000"), "too large"));
  CHECK(has(ssh.comment("16"), "data parallel 4 = 16 / (tp 4 x pp 1)"));
  CHECK(has(ssh.comment("16"), "8 on each machine"));
  CHECK(refusal(ssh, "16").empty());

  ConfigWizard one(gpus(1), nullptr);
  go_to(one, "processes", {{"type", "MULTI_GPU"}});
  CHECK(has(refusal(one, "1"), "not distributed"));
}

TEST_CASE("back keeps answers and what no longer fits is proposed anew") {
  ConfigWizard wizard(gpus(8), nullptr);
  go_to(wizard, "precision", {{"engine", "MEGATRON_LM"}, {"tp", "4"}, {"processes", "8"}});
  while (wizard.question().id != "tp") REQUIRE(wizard.back());
  CHECK(wizard.question().preset == "4");
  CHECK_FALSE(wizard.answer("3").has_value());
  go_to(wizard, "processes", {});
  CHECK(wizard.question().preset == "6");  // 8 does not do any more
  while (wizard.back()) {
  }
  CHECK(wizard.question().id == "place");
  // Another way: what belonged to the first is not written.
  go_to(wizard, "", {{"engine", "NONE"}, {"processes", "8"}});
  CHECK(wizard.config().megatron_lm_config.empty());
  CHECK(wizard.config().distributed_type == "MULTI_GPU");
}

TEST_CASE("the file that is there is proposed again") {
  Diagnostics diagnostics;
  const LaunchConfig before = parse_launch_config(
      "distributed_type: MEGATRON_LM\nnum_processes: 16\nmixed_precision: fp16\n"
      "megatron_lm_config:\n  megatron_lm_tp_degree: 8\n  megatron_lm_pp_degree: 2\n"
      "  megatron_lm_gradient_clipping: 0.3\n  megatron_lm_recompute_granularity: full\n"
      "  mtl_log_dir: logs\n",
      "c.yaml", diagnostics);
  ConfigWizard wizard(gpus(2), &before);
  go_to(wizard, "", {});
  const LaunchConfig after = wizard.config();
  CHECK(after.num_processes == 16);
  CHECK(after.mixed_precision == "fp16");
  CHECK(after.megatron_lm_config.at("megatron_lm_tp_degree") == "8");
  CHECK(after.megatron_lm_config.at("megatron_lm_gradient_clipping") == "0.3");
  CHECK(after.megatron_lm_config.at("megatron_lm_recompute_granularity") == "full");
  CHECK(after.own.at("log_dir") == "logs");
}

TEST_CASE("every file that the questions can make is one that a launch takes") {
  // All choices of every menu, one at a time, with more settings opened.
  std::set<std::string> seen;
  for (const QuestionRow& row : question_rows()) CHECK(seen.insert(row.id).second);
  for (const char* engine : {"NONE", "MEGATRON_LM", "FSDP", "DEEPSPEED"}) {
    for (const QuestionRow& row : question_rows()) {
      for (size_t choice = 0; choice < 13; ++choice) {
        ConfigWizard wizard(gpus(8), nullptr);
        bool met = false;
        for (int i = 0; i < 120; ++i) {
          if (wizard.at_review()) {
            if (!wizard.has_more()) break;
            wizard.open_more();
            continue;
          }
          const Question question = wizard.question();
          std::string answer = question.id == "engine" ? engine : question.id == "ip" ? "n0" : "";
          if (question.id == "hosts") answer = "a,b";
          if (question.id == row.id && choice < question.choices.size()) {
            answer = question.choices[choice].value;
            met = true;
          }
          if (question.id == "engine" && !question.match(answer)) answer = "NONE";
          const auto wrong = wizard.answer(answer);
          REQUIRE_MESSAGE(!wrong, question.id << ": " << wrong.value_or(""));
        }
        if (!met) break;
        Diagnostics diagnostics;
        const std::string text = launch_config_yaml(wizard.config());
        CAPTURE(text);
        const LaunchConfig config = parse_launch_config(text, "c.yaml", diagnostics);
        check_launch_config(config, diagnostics);
        for (const Diagnostic& diagnostic : diagnostics.all()) {
          CAPTURE(diagnostic.what);
          CHECK(diagnostic.severity == Diagnostic::Severity::warning);
        }
      }
    }
  }
}
