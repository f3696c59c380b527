// runtime/metrics/lines: the status line and the plain line, character by character.
#include "runtime/metrics/lines.h"

#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/terminal.h"

using namespace mtl;

namespace {

StepReport example() {
  StepReport report;
  report.step = 4120;
  report.steps = 20000;
  report.loss = 3.21468;
  report.lr = 2.9e-4;
  report.grad_norm = 0.8312;
  report.tokens_per_s = 412000;
  report.step_time_s = 1.2;
  report.mfu = 0.412;
  report.memory_bytes = static_cast<int64_t>(61.4 * 1024 * 1024 * 1024);
  report.eta_s = 33120;
  return report;
}

const std::vector<double> kLosses = {8, 7, 6, 5, 4, 3, 2, 1};

}  // namespace

TEST_CASE("the plain line") {
  CHECK(plain_line(example(), "2026-11-21T01:42:10Z") ==
        "2026-11-21T01:42:10Z step=4120 loss=3.2147 lr=2.9e-4 gnorm=0.83 tok_s=412000 mfu=0.412 "
        "mem_gib=61.4 eta_s=33120");
  StepReport broken = example();
  broken.loss = std::numeric_limits<double>::quiet_NaN();
  broken.eta_s = std::numeric_limits<double>::infinity();
  broken.memory_bytes = 40 * 1024 * 1024;
  CHECK(
      plain_line(broken, "T") ==
      "T step=4120 loss=nan lr=2.9e-4 gnorm=0.83 tok_s=412000 mfu=0.412 mem_gib=0.0391 eta_s=inf");
}

TEST_CASE("how much is learned is shown where it is not all") {
  StepReport report = example();
  CHECK(plain_line(report, "T").find("learned") == std::string::npos);
  CHECK(status_line(report, kLosses, 200, true).find("learned") == std::string::npos);
  report.learned_share = 0.2468;
  CHECK(plain_line(report, "T").ends_with(" eta_s=33120 learned=0.247"));
  CHECK(status_line(report, kLosses, 200, true).find(" tok/s  25% learned  mfu") !=
        std::string::npos);
}

TEST_CASE("skipped steps and the loss scale are shown where there are any") {
  StepReport report = example();
  report.loss_scale = 1048576;
  report.skipped = 3;
  CHECK(plain_line(report, "T").ends_with(" eta_s=33120 loss_scale=1048576 skipped=3"));
  CHECK(status_line(report, kLosses, 200, true).ends_with("mem 61.4 GiB  3 skipped  eta 9h12m"));
  CHECK(status_line(report, kLosses, 90, true).find("3 skipped") != std::string::npos);
  report.grad_norm = std::numeric_limits<double>::infinity();
  CHECK(skip_text(report) ==
        "loss 3.2147, gradient norm inf: no update, loss scale 1048576; 3 steps skipped so far");
  report.loss = std::numeric_limits<double>::quiet_NaN();
  report.loss_scale = 0;
  report.moe_aux_loss = 1.25;
  CHECK(plain_line(report, "T").ends_with(" eta_s=33120 moe_aux=1.250 skipped=3"));
  // Only what costs time.
  report.moe_turns = 1;
  CHECK(plain_line(report, "T").ends_with(" moe_aux=1.250 skipped=3"));
  report.moe_turns = 1.75;
  CHECK(plain_line(report, "T").ends_with(" moe_aux=1.250 moe_turns=1.75 skipped=3"));
  report.gpus = GpusReport{.power_w = 1380.4, .clock_mhz = 1005, .slowed = {}};
  CHECK(plain_line(report, "T").ends_with(" moe_turns=1.75 gpu_w=1380 gpu_mhz=1005 skipped=3"));
  CHECK(status_line(report, kLosses, 200, true).find("  1380 W  3 skipped") != std::string::npos);
  report.skipped = 1;
  CHECK(skip_text(report) == "loss nan, gradient norm inf: no update; 1 step skipped so far");
}

TEST_CASE("the status line at its full width") {
  CHECK(status_line(example(), kLosses, 200, true) ==
        "step   4 120/20 000  20.6%  loss 3.2147  █▇▆▅▄▃▂▁  lr 2.9e-4  gnorm 0.83  412k tok/s  "
        "mfu 41% of matmul  mem 61.4 GiB  eta 9h12m");
  CHECK(status_line(example(), kLosses, 200, false).find("#%*+=-._") != std::string::npos);
}

TEST_CASE("the status line says what mfu is of") {
  StepReport report = example();
  report.mfu_of = 8 * 989.4e12;
  report.mfu_of_peak = true;
  CHECK(status_line(report, {}, 200, true).find("  mfu 41% of 7.92 PFLOP/s  ") !=
        std::string::npos);
  report.mfu_of_peak = false;
  CHECK(status_line(report, {}, 200, true).find("  mfu 41% of matmul  ") != std::string::npos);
}

TEST_CASE("a narrow terminal loses what matters least, whole") {
  CHECK(status_line(example(), kLosses, 100, true) ==
        "step   4 120/20 000  20.6%  loss 3.2147  █▇▆▅▄▃▂▁  412k tok/s  mfu 41% of matmul  eta "
        "9h12m");
  CHECK(status_line(example(), kLosses, 79, true) ==
        "step   4 120/20 000  20.6%  loss 3.2147  █▇▆▅▄▃▂▁  412k tok/s  eta 9h12m");
  CHECK(status_line(example(), kLosses, 48, true) == "step   4 120/20 000  loss 3.2147  eta 9h12m");
  CHECK(status_line(example(), kLosses, 32, true) == "step   4 120/20 000  loss 3.2147");
  CHECK(status_line(example(), kLosses, 22, true) == "step   4 120/20 000  …");
  CHECK(status_line(example(), kLosses, 22, false) == "step   4 120/20 000  ~");
  for (int columns = 0; columns < 160; ++columns) {
    CAPTURE(columns);
    CHECK(display_width(status_line(example(), kLosses, columns, true)) <= columns);
  }
}

TEST_CASE("colour only marks: without its codes the line is the same") {
  const std::string plain = status_line(example(), kLosses, 120, true);
  const std::string painted = status_line(example(), kLosses, 120, true, true);
  CHECK(painted != plain);
  std::string stripped;
  for (size_t i = 0; i < painted.size(); ++i) {
    if (painted[i] == '\033') {
      while (painted[i] != 'm') ++i;
    } else {
      stripped += painted[i];
    }
  }
  CHECK(stripped == plain);
}

TEST_CASE("what is unknown is left out, and 100 % is said only at the end") {
  StepReport report = example();
  report.mfu = 0;
  report.memory_bytes = 0;
  report.step = 19999;
  const std::string line = status_line(report, {}, 200, true);
  CHECK(line ==
        "step  19 999/20 000  99.9%  loss 3.2147  lr 2.9e-4  gnorm 0.83  412k tok/s  eta 9h12m");
  report.steps = 0;
  CHECK(status_line(report, {}, 200, true).substr(0, 25) == "step  19 999  loss 3.2147");
}

TEST_CASE("any text becomes one line that no terminal obeys") {
  CHECK(one_line("a\nb\tc") == "a\\nb\\tc");
  CHECK(one_line("\033[2J\r\x7f\xc2\x9b"
                 "31m") ==
        "\xef\xbf\xbd[2J\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
        "31m");
  CHECK(one_line("gr\xc3\xbc\xc3\x9f \xff \xe2\x82") ==
        "gr\xc3\xbc\xc3\x9f \xef\xbf\xbd \xef\xbf\xbd\xef\xbf\xbd");
}
