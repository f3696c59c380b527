#include "runtime/plan/schedule/idle_pipeline.h"

#include <string>

#include <doctest/doctest.h>

#include "runtime/plan/rules_cases.h"

namespace mtl {
namespace {

// The warning and its help, or "" if there is none.
std::string idle_words(const ResolvedSpec& resolved, int world) {
  Diagnostics plan_says, diagnostics;
  const Plan plan = make_plan(resolved, {.vocab = 65}, world, plan_says);
  plan_says.throw_if_errors(Exit::config);
  warn_of_idle_pipeline(plan, resolved, diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  if (diagnostics.all().empty()) return "";
  CHECK(diagnostics.all().front().code == "schedule.idle");
  return diagnostics.all().front().what + "; " + diagnostics.all().front().help;
}

TEST_CASE("ZB-H1 of layers that are all made again is a warning") {
  const auto codes = [](const std::string& mode, const std::vector<std::string>& modules) {
    ResolvedSpec resolved = test::ruled_spec();
    resolved.spec.model.layers = 4;
    resolved.spec.parallel.pp = 2;
    resolved.spec.parallel.schedule = "zb-h1";
    resolved.spec.recompute.mode = mode;
    if (!modules.empty()) resolved.spec.recompute.modules = modules;
    Diagnostics diagnostics;
    const Plan plan = make_plan(resolved, {.vocab = 65}, 2, diagnostics);
    diagnostics.throw_if_errors(Exit::config);
    std::string text;
    for (const Diagnostic& one : diagnostics.all()) text += one.code;
    // What waits is foreseen by what is left.
    const StepSchedule& step = plan.largest();
    const double whole = (step.shape.stages - 1.0) / step.shape.micro_batches;
    CHECK((step.facts.bubble < 0.7 * whole) == text.empty());
    return text;
  };
  CHECK(codes("none", {}) == "");
  CHECK(codes("selective", {"norm", "mlp_act"}) == "");
  CHECK(codes("selective", {"core_attn"}) == "schedule.nothing_later");
  CHECK(codes("selective", {"norm", "mlp"}) == "schedule.nothing_later");
  CHECK(codes("full", {}) == "schedule.nothing_later");
}

TEST_CASE("a batch that nobody has divided for a pipeline is a warning that says how") {
  ResolvedSpec resolved = test::ruled_spec();
  resolved.spec.model.layers = 4;
  resolved.spec.train.global_batch = 64;
  resolved.spec.train.micro_batch = 0;
  CHECK(idle_words(resolved, 2).empty());  // two replicas
  resolved.spec.parallel.pp = 4;
  CHECK(idle_words(resolved, 4) ==
        "a step has 1 micro-batch for the 4 stages of the pipeline, which are idle 75 % of the "
        "time; with train.micro_batch=4 a step has 16, and 16 % are idle");
  CHECK(idle_words(resolved, 8) ==
        "a step has 1 micro-batch for the 4 stages of the pipeline, which are idle 75 % of the "
        "time; with train.micro_batch=2 a step has 16, and 16 % are idle");
  // As many as there can be, where they are few.
  resolved.spec.train.global_batch = 6;
  CHECK(idle_words(resolved, 4)
            .ends_with("with train.micro_batch=1 a step has 6, and 33 % are idle"));
  // What divides the steps of every phase.
  resolved.spec.train.global_batch = 64;
  resolved.spec.train.batch_ramp = {{0, 32}, {5, 96}};
  CHECK(idle_words(resolved, 4).find("train.micro_batch=4 a step has 24") != std::string::npos);
  resolved.spec.train.batch_ramp.clear();
  // Nothing to say: enough of them, or none that could be divided.
  resolved.spec.train.micro_batch = 16;
  CHECK(idle_words(resolved, 4).empty());
  resolved.spec.train.micro_batch = 1;
  resolved.spec.train.global_batch = 2;
  CHECK(idle_words(resolved, 4).empty());
}

}  // namespace
}  // namespace mtl
