#include "launcher/job/job_registry.h"

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <sstream>
#include <unistd.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/files.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kKept = int64_t{60} * 86'400;  // seconds

std::string text_of(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_string() ? found->get<std::string>() : std::string();
}

template <typename Number>
Number number_of(const nlohmann::json& record, const char* key) {
  const auto found = record.find(key);
  return found != record.end() && found->is_number() ? found->get<Number>() : Number{};
}

// A part of a file's name.
std::string plain(std::string text) {
  for (char& c : text) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '-') c = '_';
  }
  return text;
}

}  // namespace

fs::path job_registry() {
  if (const char* state = std::getenv("XDG_STATE_HOME"); state != nullptr && *state == '/') {
    return fs::path(state) / "mtl" / "jobs";
  }
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home != '/') return {};
  return fs::path(home) / ".local" / "state" / "mtl" / "jobs";
}

void record_job(const JobRecord& record) {
  const fs::path folder = job_registry();
  if (folder.empty()) return;
  nlohmann::ordered_json json;
  json["schema"] = "mtl.job/1";
  json["kind"] = record.kind;
  json["id"] = record.id;
  json["name"] = record.name;
  json["run"] = record.run;
  json["log"] = record.log;
  json["pid"] = record.pid;
  json["started"] = record.started;
  json["host"] = record.host;
  json["command"] = record.command;
  json["when"] = record.when;
  json["nodes"] = record.nodes;
  try {
    const std::string text =
        json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
    fs::create_directories(folder);
    const std::string name = fmt::format("{}-{}-{}{}.json", record.kind, plain(record.id),
                                         plain(record.host), record.pid > 0 ? "-p" : "");
    write_file_atomic(folder / name, text);
  } catch (const std::exception&) {
    // Nobody's run depends on it.
  }
}

std::vector<JobRecord> recorded_jobs() {
  std::vector<JobRecord> records;
  std::error_code ignored;
  const fs::path folder = job_registry();
  if (folder.empty()) return records;
  const int64_t now = std::time(nullptr);
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".json" || !entry.is_regular_file(ignored)) continue;
    std::ifstream in(entry.path());
    const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
    if (!json.is_object() || text_of(json, "schema") != "mtl.job/1") continue;
    JobRecord record;
    record.kind = text_of(json, "kind");
    record.id = text_of(json, "id");
    record.name = text_of(json, "name");
    record.run = text_of(json, "run");
    record.log = text_of(json, "log");
    record.pid = number_of<pid_t>(json, "pid");
    record.started = number_of<uint64_t>(json, "started");
    record.host = text_of(json, "host");
    record.command = text_of(json, "command");
    record.when = number_of<int64_t>(json, "when");
    record.nodes = number_of<int>(json, "nodes");
    if (record.id.empty() || record.kind.empty()) continue;
    // Nobody asks for what was long ago, or for a run whose directory was deleted.
    const bool gone = record.pid > 0 && record.host == host_name() && !record.run.empty() &&
                      !fs::exists(record.run, ignored);
    if ((gone || record.when + kKept < now) && !is_alive(record)) {
      fs::remove(entry.path(), ignored);
      continue;
    }
    records.push_back(record);
  }
  std::sort(records.begin(), records.end(), [](const JobRecord& a, const JobRecord& b) {
    return a.when != b.when ? a.when > b.when : a.id > b.id;
  });
  return records;
}

uint64_t process_start(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string line;
  if (!std::getline(in, line)) return 0;
  // The name may hold anything, also ") ".
  const size_t name = line.rfind(')');
  if (name == std::string::npos) return 0;
  std::istringstream rest(line.substr(name + 1));
  std::string state, word;
  rest >> state;
  if (state == "Z" || state == "X") return 0;
  for (int field = 4; field <= 22 && rest >> word; ++field) {
  }
  return std::strtoull(word.c_str(), nullptr, 10);
}

bool is_alive(const JobRecord& record) {
  return record.pid > 0 && record.host == host_name() && record.started != 0 &&
         process_start(record.pid) == record.started;
}

JobRecord record_of_this_process(const std::string& kind, const std::string& name) {
  JobRecord record;
  record.kind = kind;
  record.pid = getpid();
  record.id = fmt::format("p{}", record.pid);
  record.name = name;
  record.started = process_start(record.pid);
  record.host = host_name();
  record.when = std::time(nullptr);
  return record;
}

}  // namespace mtl
