// Values of train.yaml: what is a number, a switch, a text, a list, and what is not.
#include <cstdint>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "runtime/spec/load.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("auto stands for 0, and only where it is meant") {
  const Loaded loaded = load_overrides({"parallel.dp=auto", "train.micro_batch=auto",
                                        "lr.decay=auto", "model.ffn=auto", "model.max_seq=auto"});
  CHECK(texts(loaded).empty());
  CHECK(loaded.resolved.spec.lr.decay == 0);
  CHECK(loaded.resolved.origins.at("lr.decay") == Origin::command_line);
  CHECK(code_of("parallel.tp=auto") == "config.type");
  CHECK(refusal("parallel.dp=0") ==
        "config.range: parallel.dp cannot be `0` | give a whole number from 1 to 1048576, or auto "
        "(world size / (tp x cp x ep x pp))");
}

TEST_CASE("a time that is none is shown with its unit") {
  CHECK(load_overrides({"checkpoint.every_time=90m"}).resolved.spec.checkpoint.every_time == 5400);
  for (const char* bad : {"5 parsecs", "1.5h", "m", "30", "h30", "1h30m"}) {
    CAPTURE(bad);
    CHECK(refusal(fmt::format("checkpoint.every_time={}", bad))
              .starts_with(fmt::format("config.type: checkpoint.every_time: `{}` is not a time | "
                                       "give a time from 0 to 31d",
                                       bad)));
  }
  CHECK(refusal("health.max_time=1ms").find("k is 1000") == std::string::npos);
  CHECK(refusal("checkpoint.every_time=010m").find("`010m` is not a time") != std::string::npos);
  CHECK(refusal("checkpoint.every_time=010m").find("leading zeros") != std::string::npos);
  CHECK(refusal("checkpoint.every_time=99999999999999999999d")
            .starts_with("config.range: checkpoint.every_time cannot be `99999999999999999999d`"));
}

TEST_CASE("a weight that is too large is not said to be too small") {
  CHECK(refusal("data.train=[{path: a, weight: 0}]").find("must be above 0 |") !=
        std::string::npos);
  CHECK(refusal("data.train=[{path: a, weight: 1e13}]").find("above 0, at most 1e12 |") !=
        std::string::npos);
}

TEST_CASE("whole numbers") {
  const auto steps = [](const std::string& text) -> int64_t {
    const Loaded loaded = load_overrides({"train.steps=" + text});
    return loaded.problems.empty() ? loaded.resolved.spec.train.steps : -1;
  };
  CHECK(steps("1e9") == 1'000'000'000);
  CHECK(steps("1E+3") == 1000);
  CHECK(steps("1.5e3") == 1500);
  CHECK(steps("1000e-2") == 10);
  CHECK(steps("1_000_000") == 1'000'000);
  CHECK(steps("+7") == 7);
  CHECK(steps("32.0") == 32);
  CHECK(steps("10k") == 10'000);
  CHECK(steps("2.5M") == 2'500'000);
  CHECK(steps("1G") == 1'000'000'000);
  for (const char* bad :
       {"1e-3", "1.5", "010", "0x10", "1__0", "_1",     "1_",  "1 000", "12:30:45",
        "k",    "1kk", "1e",  "e5",   "-",    "+-1",    "ten", "1,000", "true",
        ".inf", ".5",  "nan", "'5'",  "[5]",  "{a: 5}", "~",   ""}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("train.steps={}", bad)) == "config.type");
  }
  for (const char* bad : {"0", "-1", "-5k", "1e13", "1e30", "1e99999999999", "9223372036854775808",
                          "99999999999999999999", "9999999999G"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("train.steps={}", bad)) == "config.range");
  }
  CHECK(refusal("train.seq_len=4k") ==
        "config.type: train.seq_len: `4k` is not a whole number | write the number in full: "
        "whether k is 1000 or 1024 is a matter of taste");
  CHECK(refusal("train.steps=010").find("leading zeros") != std::string::npos);
  CHECK(load_overrides({"train.seed=9007199254740992"}).resolved.spec.train.seed ==
        9007199254740992u);
  CHECK(code_of("train.seed=9007199254740993") == "config.range");
}

TEST_CASE("numbers") {
  const auto lr = [](const std::string& text) {
    const Loaded loaded = load_overrides({"lr.max=" + text});
    return loaded.problems.empty() ? loaded.resolved.spec.lr.max : -1.0;
  };
  CHECK(lr("1e-3") == 1e-3);
  CHECK(lr("1.0e-3") == 1e-3);
  CHECK(lr("+.5") == 0.5);
  CHECK(lr("1") == 1.0);
  for (const char* bad : {"fast", "1e", "0x1p3", "1_0", "1,5", "+-1", "'1'", "[1]", "1e-3 x"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("lr.max={}", bad)) == "config.type");
  }
  for (const char* bad : {"0", "-1e-3", "1e999", "inf", "nan", "1e4"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("lr.max={}", bad)) == "config.range");
  }
  CHECK(refusal("model.dropout.hidden=1") ==
        "config.range: model.dropout.hidden cannot be `1` | give a number at least 0, below 1");
}

TEST_CASE("switches, texts, paths and lists") {
  for (const char* bad : {"yes", "no", "on", "1", "True", "'true'"}) {
    CAPTURE(bad);
    CHECK(code_of(fmt::format("model.bias={}", bad)) == "config.type");
  }
  CHECK(load_overrides({"run.name=007"}).resolved.spec.run.name == "007");
  CHECK(load_overrides({"run.name='no'"}).resolved.spec.run.name == "no");
  CHECK(load_overrides({"data.train=a=b.txt"}).resolved.spec.data.train == "a=b.txt");
  CHECK(code_of("run.name=a/b") == "config.range");
  CHECK(code_of("run.name=..") == "config.range");
  CHECK(code_of("run.name=''") == "config.range");
  CHECK(code_of("run.dir=~/runs") == "config.range");
  CHECK(code_of("data.train=") == "config.type");
  CHECK(code_of("data.train=[]") == "config.range");
  CHECK(code_of("data.train={path: a}") == "config.type");
  CHECK(code_of("data.train=[{path: a, weigth: 1}]") == "config.type");
  CHECK(code_of("data.train=[{weight: 1}]") == "config.type");
  CHECK(code_of("data.train=[{path: a, weight: 0}]") == "config.range");
  CHECK(code_of("data.train=[{path: a, weight: 1}, b]") == "config.range");
  {
    const TrainSpec s =
        load_overrides({"data.train=[{path: 'a b', weight: 0.3}, {path: c, weight: 7}]"})
            .resolved.spec;
    CHECK(s.data.train.empty());
    CHECK(s.data.train_list == std::vector<TrainSpec::Data::Source>{{"a b", 0.3}, {"c", 7}});
  }
  CHECK(load_overrides({"data.train=[a, b]"}).resolved.spec.data.train_list ==
        std::vector<TrainSpec::Data::Source>{{"a", 0}, {"b", 0}});
  CHECK(load_overrides({"data.train=[a]", "data.train=x"}).resolved.spec.data.train_list.empty());
  CHECK(code_of("optimizer.betas=0.9") == "config.type");
  CHECK(code_of("optimizer.betas=[0.9]") == "config.range");
  CHECK(code_of("optimizer.betas=[0.9, 1]") == "config.range");
  CHECK(code_of("optimizer.betas=[0.9, x]") == "config.type");
  CHECK(code_of("optimizer.betas=[0.9, [1]]") == "config.type");
  CHECK(load_overrides({"data.split=[969, 30, 1]"}).resolved.spec.data.split ==
        std::vector<double>{969, 30, 1});
  // In a shell's word a list needs no brackets, which shells have other uses for.
  const TrainSpec bare = load_overrides({"data.split=95,5", "optimizer.betas=0.8, 0.9",
                                         "recompute.mode=selective", "recompute.modules=mlp,norm"})
                             .resolved.spec;
  CHECK(bare.data.split == std::vector<double>{95, 5});
  CHECK(bare.optimizer.beta1 == 0.8);
  CHECK(bare.optimizer.beta2 == 0.9);
  CHECK(bare.recompute.modules == std::vector<std::string>{"mlp", "norm"});
  CHECK(load_overrides({"recompute.modules=mlp"}).resolved.spec.recompute.modules ==
        std::vector<std::string>{"mlp"});
  CHECK(code_of("data.split=95;5") == "config.type");
  CHECK(code_of("data.split=95,5]") == "yaml.syntax");
  CHECK(code_of("data.split=95,x") == "config.type");
  CHECK(refusal("data.split=[1, 2, 3, 4]") ==
        "config.range: data.split has 4 numbers instead of one to three | give one to three "
        "numbers from 0 to 1000000000000, like [90, 10]");
  CHECK(code_of("data.split=[0, 1]") == "config.range");
  CHECK(code_of("data.split=[1, -1]") == "config.range");
  CHECK(code_of("model.dropout=0.1") == "config.type");
}
