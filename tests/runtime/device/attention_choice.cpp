// Which attention kernel is taken, with a cuDNN that is none: every outcome of a trial, and what
// happens when it fails in use. And the trial itself, on the CPU.
#include "runtime/device/cuda/attention_choice.h"

#include <cmath>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/device/cuda/attention_trial.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::cuda;

namespace {

constexpr AttentionForm kForm = {2, 128, 4, 2, 64, DType::bf16};

AttentionShape shape_of(const AttentionForm& form) {
  AttentionShape shape;
  shape.batch = form.batch;
  shape.seq = form.seq;
  shape.heads = shape.total_heads = form.heads;
  shape.kv_heads = form.kv_heads;
  shape.head_dim = form.head_dim;
  shape.value_dim = form.value_dim;
  shape.scale = 0.125f;
  return shape;
}

struct Fake final : AttentionCandidate {
  std::string version() const override { return "9.9.9"; }
  int64_t prepare(const AttentionForm&) override {
    ++prepared;
    if (!no_plan.empty()) throw cudnn::Failure{no_plan};
    return workspace;
  }
  AttentionTrial try_out(const AttentionForm&) override {
    ++tried;
    if (no_memory) {
      throw Error(Exit::out_of_memory, {.code = "gpu.memory", .what = "no room", .help = ""});
    }
    return trial;
  }
  void forward(const AttentionForm&, const Attention&) override { use(); }
  void backward(const AttentionForm&, const AttentionBackward&) override { use(); }
  void use() {
    if (fails_in_use) throw cudnn::Failure{"it broke"};
    ++used;
  }

  AttentionTrial trial = {.own_seconds = 2e-3, .cudnn_seconds = 1e-3};
  int64_t workspace = 1 << 20;
  std::string no_plan;
  bool no_memory = false, fails_in_use = false;
  int prepared = 0, tried = 0, used = 0;
};

// A chooser over a Fake, and how often our own kernel ran.
struct Setting {
  explicit Setting(AttentionMode mode)
      : chooser(
            mode,
            {.forward = [this](const Attention&) { ++own; },
             .backward = [this](const AttentionBackward&) { ++own; }},
            [this]() -> AttentionCandidate& {
              ++opened;
              if (!missing.empty()) throw cudnn::Failure{missing};
              return fake;
            },
            [this](const std::string& line) { told.push_back(line); }) {}

  void call(const AttentionShape& shape, DType dtype = DType::bf16, uintptr_t address = 4096) {
    const Tensor x(reinterpret_cast<void*>(address), dtype, {1});
    chooser.forward({.shape = shape, .qkv = x, .out = x, .lse = x});
    chooser.backward({.shape = shape, .qkv = x, .out = x, .lse = x, .dout = x, .dqkv = x});
  }
  std::string why() { return chooser.choose(kForm).why; }

  Fake fake;
  std::string missing;
  int own = 0, opened = 0;
  std::vector<std::string> told;
  AttentionChooser chooser;
};

using mtl::test::has;

Diagnostic refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.diagnostics().front();
  }
  return {};
}

}  // namespace

TEST_CASE("attention choice: the variable") {
  CHECK(attention_mode(nullptr) == AttentionMode::own);
  CHECK(attention_mode("") == AttentionMode::own);
  CHECK(attention_mode("own") == AttentionMode::own);
  CHECK(attention_mode("split") == AttentionMode::split);
  CHECK(attention_mode("mma") == AttentionMode::mma);
  CHECK(attention_mode("auto") == AttentionMode::automatic);
  CHECK(attention_mode("cudnn") == AttentionMode::cudnn);
  CHECK(refusal_of([] { attention_mode("flash"); }).code == "gpu.attention");
  using kernel_scratch::Backward;
  CHECK(backward_of(AttentionMode::own) == Backward::measured);
  CHECK(backward_of(AttentionMode::automatic) == Backward::measured);
  CHECK(backward_of(AttentionMode::split) == Backward::split);
}

TEST_CASE("attention choice: what is not for cuDNN stays with our kernel") {
  const AttentionShape plain = shape_of(kForm);
  CHECK(form_for_cudnn(plain, DType::bf16) == kForm);
  CHECK(form_for_cudnn(plain, DType::f16).has_value());
  CHECK_FALSE(form_for_cudnn(plain, DType::f32).has_value());
  int32_t key = 0;
  uint16_t sinks[8] = {};
  const std::vector<std::function<void(AttentionShape&)>> changes = {
      [](AttentionShape& s) { s.head_dim = 80; },
      [](AttentionShape& s) { s.head_dim = 192; },
      [](AttentionShape& s) { s.value_dim = 40; },
      [](AttentionShape& s) { s.dropout.probability = 0.1f; },
      [](AttentionShape& s) { s.alibi = true; },
      [&](AttentionShape& s) { s.sinks = Tensor(&sinks, DType::bf16, {s.heads}); },
      [](AttentionShape& s) { s.window = 100; },
      [](AttentionShape& s) { s.first_query = 1; },
      [&](AttentionShape& s) { s.first_key = Tensor(&key, DType::i32, {1}); },
      [](AttentionShape& s) { s.scale = -1; },
      [](AttentionShape& s) { s.batch = 0; }};
  for (size_t i = 0; i < changes.size(); ++i) {
    CAPTURE(i);
    AttentionShape shape = plain;
    changes[i](shape);
    CHECK_FALSE(form_for_cudnn(shape, DType::bf16).has_value());
    // Also where cuDNN is asked for.
    Setting setting(AttentionMode::cudnn);
    setting.call(shape);
    CHECK(setting.own == 2);
    CHECK(setting.fake.used == 0);
    CHECK(has(setting.chooser.words(shape, DType::bf16), "our kernel"));
  }
  AttentionShape wide = plain;
  wide.window = wide.seq;  // limits nothing
  CHECK(form_for_cudnn(wide, DType::bf16) == kForm);
  Setting unaligned(AttentionMode::cudnn);
  unaligned.call(plain, DType::bf16, 4098);
  CHECK(unaligned.own == 2);
}

TEST_CASE("attention choice: cuDNN is asked for values narrower than keys, by their own name") {
  AttentionShape shape = shape_of(kForm);
  shape.value_dim = shape.head_dim;  // said, but no other
  CHECK(form_for_cudnn(shape, DType::bf16) == kForm);
  shape.head_dim = 192;
  shape.value_dim = 128;
  const std::optional<AttentionForm> form = form_for_cudnn(shape, DType::bf16);
  REQUIRE(form.has_value());
  CHECK(form->values() == 128);
  CHECK(form->row() == 4 * 192 + 2 * 192 + 2 * 128);
  CHECK(form->out_width() == 4 * 128);
  CHECK(describe(*form) == "2x128, 4 heads (2 of keys) of 192 and 128, BF16");
  Setting setting(AttentionMode::automatic);
  setting.call(shape);
  CHECK(setting.fake.used == 2);
  setting.call(shape_of(kForm));  // is another form
  CHECK(setting.fake.tried == 2);
  // Refused, it is ours.
  Setting refused(AttentionMode::automatic);
  refused.fake.no_plan = "not these";
  refused.call(shape);
  CHECK(refused.own == 2);
}

TEST_CASE("attention choice: own asks nobody") {
  for (const AttentionMode mode : {AttentionMode::own, AttentionMode::split, AttentionMode::mma}) {
    Setting setting(mode);
    setting.call(shape_of(kForm));
    CHECK(setting.own == 2);
    CHECK(setting.opened == 0);
    CHECK(setting.why() == "our kernel: MTL_ATTENTION=auto tries cuDNN's");
  }
}

TEST_CASE("attention choice: auto takes the faster and right one, once per form") {
  Setting setting(AttentionMode::automatic);
  setting.call(shape_of(kForm));
  setting.call(shape_of(kForm));
  CHECK(setting.own == 0);
  CHECK(setting.fake.used == 4);
  CHECK(setting.opened == 1);
  CHECK(setting.fake.tried == 1);
  CHECK(setting.chooser.words(shape_of(kForm), DType::bf16) ==
        "attention 2x128, 4 heads (2 of keys) of 64, BF16 by cuDNN 9.9.9: 1 ms, our kernel 2 ms");
  AttentionForm other = kForm;
  other.seq = 256;
  setting.chooser.choose(other);
  CHECK(setting.fake.tried == 2);
  CHECK(setting.opened == 1);
}

TEST_CASE("attention choice: auto keeps our kernel for every reason and says it") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  struct {
    std::function<void(Setting&)> set;
    const char* why;
  } const kCases[] = {
      {[](Setting& s) { s.missing = "cuDNN cannot be opened: no file"; }, "no file"},
      {[](Setting& s) { s.fake.no_plan = "finalize: NOT_SUPPORTED (3000): why"; },
       "our kernel: finalize: NOT_SUPPORTED (3000): why"},
      {[](Setting& s) { s.fake.workspace = int64_t{9} << 30; }, "needs 9.0 GiB more"},
      {[](Setting& s) { s.fake.no_memory = true; }, "our kernel: no room"},
      {[](Setting& s) { s.fake.trial.out_error = 0.1; }, "gives other numbers"},
      {[&](Setting& s) { s.fake.trial.out_error = nan; }, "gives other numbers"},
      {[](Setting& s) { s.fake.trial.lse_error = 0.1; }, "gives other numbers"},
      {[](Setting& s) { s.fake.trial.gradient_error = 0.1; }, "gives other numbers"},
      {[](Setting& s) { s.fake.trial.repeats = false; }, "other bits the second time"},
      {[](Setting& s) { s.fake.trial.cudnn_seconds = 3e-3; },
       "is not faster: 3 ms, our kernel 2 ms"}};
  for (const auto& one : kCases) {
    CAPTURE(one.why);
    Setting setting(AttentionMode::automatic);
    one.set(setting);
    setting.call(shape_of(kForm));
    CHECK(setting.own == 2);
    CHECK(setting.fake.used == 0);
    CHECK(has(setting.why(), "our kernel: "));
    CHECK(has(setting.why(), one.why));
  }
}

TEST_CASE("attention choice: cudnn is taken without a trial or is an error that says why") {
  Setting good(AttentionMode::cudnn);
  good.fake.workspace = int64_t{9} << 30;
  good.call(shape_of(kForm));
  CHECK(good.fake.used == 2);
  CHECK(good.fake.tried == 0);
  Setting missing(AttentionMode::cudnn);
  missing.missing = "cuDNN cannot be opened: no file";
  Diagnostic why = refusal_of([&] { missing.call(shape_of(kForm)); });
  CHECK(why.code == "gpu.attention");
  CHECK(has(why.what, "no file"));
  CHECK(missing.own == 0);
  Setting planless(AttentionMode::cudnn);
  planless.fake.no_plan = "no plan";
  CHECK(has(refusal_of([&] { planless.why(); }).what, "no plan"));
}

TEST_CASE("attention choice: a failure in use ends it for good and is told once") {
  Setting setting(AttentionMode::automatic);
  setting.fake.fails_in_use = true;
  setting.call(shape_of(kForm));
  setting.call(shape_of(kForm));
  CHECK(setting.own == 4);
  REQUIRE(setting.told.size() == 1);
  CHECK(has(setting.told[0], "by our kernel: cuDNN has failed: it broke"));
  Setting forced(AttentionMode::cudnn);
  forced.fake.fails_in_use = true;
  CHECK(has(refusal_of([&] { forced.call(shape_of(kForm)); }).what, "it broke"));
}

TEST_CASE("attention trial: sees a kernel that is wrong in one thing") {
  const auto device = make_cpu_device(1);
  const AttentionForm form = {2, 40, 4, 2, 64, DType::bf16};
  const AttentionKernel right = {
      .forward = [&](const Attention& args) { device->attention_forward(args); },
      .backward = [&](const AttentionBackward& args) { device->attention_backward(args); }};
  AttentionTrial trial = try_attention(*device, form, right, right);
  CHECK(trial.out_error == 0);
  CHECK(trial.lse_error == 0);
  CHECK(trial.gradient_error == 0);
  CHECK(trial.repeats);
  CHECK(trial.own_seconds > 0);
  CHECK(trial.cudnn_seconds > 0);

  AttentionKernel wrong = right;
  wrong.forward = [&](const Attention& args) {
    device->attention_forward(args);
    device->scale(args.out, 1.05f);
  };
  trial = try_attention(*device, form, right, wrong);
  CHECK(trial.out_error == doctest::Approx(0.05).epsilon(0.05));
  CHECK(trial.lse_error == 0);
  wrong = right;
  wrong.forward = [&](const Attention& args) {
    device->attention_forward(args);
    args.lse.as<float>()[77] = std::numeric_limits<float>::quiet_NaN();
  };
  wrong.backward = [](const AttentionBackward&) {};
  trial = try_attention(*device, form, right, wrong);
  CHECK(std::isnan(trial.lse_error));
  wrong = right;
  int calls = 0;
  wrong.backward = [&](const AttentionBackward& args) {
    device->attention_backward(args);
    if (++calls > 1) device->scale(args.dqkv.slice(args.dqkv.numel() - 5, 1), 1.01f);
  };
  trial = try_attention(*device, form, right, wrong);
  CHECK_FALSE(trial.repeats);
  CHECK(trial.gradient_error == 0);
  // No mask: every query sees all keys, as with a sequence of ones; the numbers must be far apart.
  wrong = right;
  wrong.forward = [&](const Attention& args) {
    Attention one = args;
    one.shape.scale = 0.5f * args.shape.scale;
    device->attention_forward(one);
  };
  trial = try_attention(*device, form, right, wrong);
  CHECK(trial.out_error > 0.02);
  CHECK(trial.lse_error > 0.01);
}
