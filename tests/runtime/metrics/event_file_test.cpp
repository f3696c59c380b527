// TensorBoard's files: framing, fields, and what a crash, a full disk or a resume leaves. Read here
// by a decoder that knows no field's meaning; tests/clients/tensorboard_test.cpp asks TensorBoard
// itself.
#include "runtime/metrics/event_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <fcntl.h>
#include <fstream>
#include <map>
#include <unistd.h>

#include <sys/resource.h>

#include <doctest/doctest.h>

#include "runtime/metrics/record.h"
#include "runtime/metrics/reporter.h"
#include "runtime/metrics/run_settings.h"
#include "support/temp_dir.h"
#include "support/text.h"

using namespace mtl;

namespace {

namespace fs = std::filesystem;

const EventFile::Time kNow{std::chrono::milliseconds(1795225330500)};

std::vector<fs::path> board_files(const fs::path& folder) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

uint64_t little_endian(std::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<uint8_t>(bytes[i]);
  return value;
}

// CRC-32C bit by bit (RFC 3720), masked as TensorFlow does.
uint32_t slow_masked_crc(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
  }
  crc = ~crc;
  return (crc >> 15 | crc << 17) + 0xa282ead8U;
}

// A message as it stands on the wire: of each field its values, numbers as their bytes.
using Fields = std::map<int, std::vector<std::string>>;

uint64_t take_varint(std::string_view& bytes) {
  uint64_t value = 0;
  for (int shift = 0;; shift += 7) {
    REQUIRE(!bytes.empty());
    const auto byte = static_cast<uint8_t>(bytes[0]);
    bytes.remove_prefix(1);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return value;
  }
}

Fields fields_of(std::string_view bytes) {
  Fields fields;
  while (!bytes.empty()) {
    const uint64_t tag = take_varint(bytes);
    std::string value;
    size_t size = 0;
    switch (tag & 7) {
      case 0: {
        const uint64_t number = take_varint(bytes);
        value = std::to_string(number);
        break;
      }
      case 1:
        size = 8;
        break;
      case 2:
        size = take_varint(bytes);
        break;
      case 5:
        size = 4;
        break;
      default:
        FAIL("an unknown wire type");
    }
    REQUIRE(size <= bytes.size());
    if (size > 0) value = bytes.substr(0, size);
    bytes.remove_prefix(size);
    fields[static_cast<int>(tag >> 3)].push_back(value);
  }
  return fields;
}

// The events of a file, up to the first record that is not whole.
std::vector<Fields> events_of(const std::string& file) {
  std::vector<Fields> events;
  std::string_view rest = file;
  while (rest.size() >= 16) {
    const uint64_t size = little_endian(rest.substr(0, 8));
    if (little_endian(rest.substr(8, 4)) != slow_masked_crc(rest.substr(0, 8))) break;
    if (rest.size() < size + 16) break;
    const std::string_view data = rest.substr(12, size);
    if (little_endian(rest.substr(12 + size, 4)) != slow_masked_crc(data)) break;
    events.push_back(fields_of(data));
    rest.remove_prefix(size + 16);
  }
  return events;
}

std::map<std::string, float> scalars_of(const Fields& event) {
  std::map<std::string, float> scalars;
  const Fields summary = fields_of(event.at(5).at(0));
  for (const std::string& value : summary.at(1)) {
    Fields fields = fields_of(value);
    const auto bits = static_cast<uint32_t>(little_endian(fields.at(2).at(0)));
    scalars[fields.at(1).at(0)] = std::bit_cast<float>(bits);
  }
  return scalars;
}

const std::vector<TaggedScalar> kLoss = {{"train/loss", 2.5}};

}  // namespace

TEST_CASE("a record is framed as TFRecord does it") {
  // RFC 3720 B.4: the CRC-32C of 32 zero bytes is 8a9136aa.
  const std::string record = event_record(std::string(32, '\0'));
  REQUIRE(record.size() == 48);
  CHECK(little_endian(std::string_view(record).substr(0, 8)) == 32);
  const uint32_t masked = (0x8a9136aaU >> 15 | 0x8a9136aaU << 17) + 0xa282ead8U;
  CHECK(little_endian(std::string_view(record).substr(44, 4)) == masked);
  // "123456789" is the check value of catalogues: e3069283.
  CHECK(slow_masked_crc("123456789") == (0xe3069283U >> 15 | 0xe3069283U << 17) + 0xa282ead8U);
  CHECK(events_of(event_record("")).size() == 1);
}

TEST_CASE("a file begins with its version and the step from which it counts") {
  test::TempDir dir;
  EventFile file(dir.path() / "tb", kNow, 41);
  CHECK(file.scalars(kNow, 41,
                     std::vector<TaggedScalar>{{"train/loss", 2.5}, {"speed/mfu", 0.25}}) == 0);
  const auto files = board_files(dir.path() / "tb");
  REQUIRE(files.size() == 1);
  CHECK(files[0].filename().string().starts_with("events.out.tfevents.1795225330."));
  const auto events = events_of(test::file_text(files[0]));
  REQUIRE(events.size() == 3);
  CHECK(events[0].at(3).at(0) == "brain.Event:2");
  CHECK(std::bit_cast<double>(little_endian(events[0].at(1).at(0))) == 1795225330.5);
  CHECK(events[1].at(2).at(0) == "41");
  CHECK(fields_of(events[1].at(7).at(0)).at(1).at(0) == "1");  // SessionLog START
  CHECK(events[2].at(2).at(0) == "41");
  CHECK(scalars_of(events[2]) ==
        std::map<std::string, float>{{"train/loss", 2.5F}, {"speed/mfu", 0.25F}});
}

TEST_CASE("texts and settings are values of TensorBoard's plug-ins") {
  test::TempDir dir;
  EventFile file(dir.path(), kNow, 1);
  CHECK(file.text(kNow, 7, "run/start", "    line <b>") == 0);
  CHECK(file.settings(kNow, 7,
                      std::vector<TaggedSetting>{
                          {"lr.max", 0.5}, {"log.tensorboard", true}, {"run.name", "a"}}) == 0);
  const auto events = events_of(test::file_text(board_files(dir.path())[0]));
  REQUIRE(events.size() == 4);
  const auto value = [&](size_t event) {
    return fields_of(fields_of(events[event].at(5).at(0)).at(1).at(0));
  };
  const auto plugin = [](const Fields& fields) {
    return fields_of(fields_of(fields.at(9).at(0)).at(1).at(0));
  };
  CHECK(value(2).at(1).at(0) == "run/start");
  CHECK(fields_of(value(2).at(8).at(0)).at(8).at(0) == "    line <b>");
  CHECK(plugin(value(2)).at(1).at(0) == "text");
  CHECK(value(3).at(1).at(0) == "_hparams_/session_start_info");
  const Fields data = fields_of(plugin(value(3)).at(2).at(0));
  const Fields session = fields_of(data.at(3).at(0));
  std::vector<std::string> keys;
  for (const std::string& entry : session.at(1)) keys.push_back(fields_of(entry).at(1).at(0));
  CHECK(keys == std::vector<std::string>{"lr.max", "log.tensorboard", "run.name"});
  const auto setting = [&](size_t i) { return fields_of(fields_of(session.at(1)[i]).at(2).at(0)); };
  CHECK(std::bit_cast<double>(little_endian(setting(0).at(2).at(0))) == 0.5);
  CHECK(setting(1).at(4).at(0) == "1");
  CHECK(setting(2).at(3).at(0) == "a");
}

TEST_CASE("a later start is a later file, whatever the clock says") {
  test::TempDir dir;
  std::ofstream(dir.path() / "events.out.tfevents.9000000000.host.1") << "of another";
  std::ofstream(dir.path() / "events.out.tfevents.strange") << "of another";
  EventFile first(dir.path(), kNow, 1);
  EventFile second(dir.path(), kNow, 1);
  first.scalars(kNow, 1, kLoss);
  const auto files = board_files(dir.path());
  REQUIRE(files.size() == 4);
  CHECK(files[1].filename().string().starts_with("events.out.tfevents.9000000001."));
  CHECK(files[2].filename().string().starts_with("events.out.tfevents.9000000002."));
  CHECK(events_of(test::file_text(files[1])).size() == 3);
  CHECK(events_of(test::file_text(files[2])).size() == 2);
}

TEST_CASE("whatever a crash leaves of the last record, all before it is read") {
  test::TempDir dir;
  EventFile file(dir.path(), kNow, 1);
  for (int i = 1; i <= 3; ++i) file.scalars(kNow, i, kLoss);
  const std::string whole = test::file_text(board_files(dir.path())[0]);
  const size_t record = (whole.size() - events_of(whole).size() * 16) / 5;
  for (size_t cut = 1; cut <= record; ++cut) {
    CAPTURE(cut);
    CHECK(events_of(whole.substr(0, whole.size() - cut)).size() == 4);
  }
}

TEST_CASE("a record that a full disk has cut is taken back, and the next one is whole") {
  test::TempDir dir;
  EventFile file(dir.path(), kNow, 1);
  REQUIRE(file.scalars(kNow, 1, kLoss) == 0);
  const fs::path path = board_files(dir.path())[0];
  const uintmax_t before = fs::file_size(path);
  const auto ignored = std::signal(SIGXFSZ, SIG_IGN);
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit tight{before + 5, limit.rlim_max};
  REQUIRE(setrlimit(RLIMIT_FSIZE, &tight) == 0);
  const int second = file.scalars(kNow, 2, kLoss);
  const int third = file.scalars(kNow, 3, kLoss);
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limit) == 0);
  std::signal(SIGXFSZ, ignored);
  CHECK(second == EFBIG);
  CHECK(third == EFBIG);
  CHECK(fs::file_size(path) == before + 5);
  CHECK(file.scalars(kNow, 4, kLoss) == 0);
  const auto events = events_of(test::file_text(path));
  REQUIRE(events.size() == 4);
  CHECK(events[3].at(2).at(0) == "4");
}

TEST_CASE("a folder that cannot be written is an error of every call, not an exception") {
  test::TempDir dir;
  std::ofstream(dir.path() / "tb") << "a file";
  EventFile file(dir.path() / "tb", kNow, 1);
  CHECK(file.scalars(kNow, 1, kLoss) == ENOTDIR);
  CHECK(file.text(kNow, 1, "run/start", "x") == ENOTDIR);
}

TEST_CASE("what a metrics line has is what TensorBoard gets, by group") {
  const Json line = Json::parse(
      R"({"step":7,"time":"T","loss":2.5,"lr":0.001,"grad_norm":null,"tokens_per_s":10,
          "mfu_of":"peak","memory_bytes":4096,"gpus":{"power_w":700.5,"slowed":{"heat":1}}})");
  std::map<std::string, double> scalars;
  for (const TaggedScalar& scalar : tagged_scalars(line)) scalars[scalar.tag] = scalar.value;
  CHECK(std::isnan(scalars.at("train/grad_norm")));
  scalars.erase("train/grad_norm");
  CHECK(scalars == std::map<std::string, double>{{"train/loss", 2.5},
                                                 {"train/lr", 0.001},
                                                 {"speed/tokens_per_s", 10},
                                                 {"memory/bytes", 4096},
                                                 {"gpu/power_w", 700.5}});
}

TEST_CASE("settings are read from a resolved.yaml, and given ones have types") {
  const std::string text =
      "# Every setting of this run, and where its value came from.\n"
      "run:\n  name: \"a: b  # c\"  # command line\n"
      "train:\n  steps: 1000  # train.yaml\n  eval:\n    every: 0  # built-in\n  seed: 1  # "
      "train.yaml\n"
      "nonsense\n      deep: 1  # train.yaml\nlog:\n  tensorboard: true  # environment\n  eve";
  const auto settings = settings_of(text);
  std::vector<std::string> keys;
  for (const RunSetting& setting : settings) keys.push_back(setting.key + "=" + setting.value);
  CHECK(keys == std::vector<std::string>{"run.name=\"a: b  # c\"", "train.steps=1000",
                                         "train.eval.every=0", "train.seed=1",
                                         "log.tensorboard=true"});
  CHECK(settings[0].origin == "command line");
  const auto given = given_settings(settings);
  REQUIRE(given.size() == 4);
  CHECK(std::get<std::string>(given[0].value) == "a: b  # c");
  CHECK(std::get<double>(given[1].value) == 1000);
  CHECK(std::get<bool>(given[3].value));
  CHECK(settings_of("").empty());
}

TEST_CASE("a run reports to TensorBoard what metrics.jsonl gets, if it is asked to") {
  test::TempDir dir;
  const auto report = [&](bool tensorboard, int64_t resume_step) {
    ReporterOptions options;
    options.run_dir = dir.path();
    options.progress_fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    options.resume_step = resume_step;
    options.tensorboard = tensorboard;
    options.now = [] { return kNow; };
    Reporter reporter(options);
    reporter.start({"model    tiny"});
    for (int64_t step = resume_step + 1; step <= resume_step + 12; ++step) {
      StepReport line;
      line.step = step;
      line.steps = 100;
      line.loss = 2.5;
      reporter.step(line);
    }
    reporter.eval(resume_step + 12, 3.5, {{"web", 3.0}});
    reporter.generated({.step = resume_step + 12,
                        .texts = {{.prompt = "ROMEO:", .text = "\xff\nO", .ended = ""}}});
    reporter.finish("stopped", {});
    close(options.progress_fd);
  };
  report(false, 0);
  CHECK_FALSE(fs::exists(dir.path() / "tb"));
  std::ofstream(dir.path() / "resolved.yaml") << "train:\n  steps: 100  # train.yaml\n";
  report(true, 0);
  report(true, 10);
  const auto files = board_files(dir.path() / "tb");
  REQUIRE(files.size() == 2);
  const auto events = events_of(test::file_text(files[1]));
  // Version, start, settings twice, the lines that it opened with, steps 11, 20, 22 and the
  // evaluation with its text, which come before the last step is logged.
  REQUIRE(events.size() == 10);
  CHECK(events[1].at(2).at(0) == "11");
  CHECK(scalars_of(events[5]).at("train/loss") == 2.5F);
  CHECK(events[6].at(2).at(0) == "20");
  CHECK(scalars_of(events[7]) ==
        std::map<std::string, float>{{"valid/loss", 3.5F}, {"valid/loss/web", 3.0F}});
  CHECK(test::file_text(files[1]).find("generated/prompt 1") != std::string::npos);
  CHECK(test::file_text(files[1]).find("    ROMEO:\xef\xbf\xbd\n    O") != std::string::npos);
  CHECK(events[9].at(2).at(0) == "22");
}
