#include "host_cuda/kernel_watchers.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>

#include "ptx/counts.h"
#include "ptx/races.h"

namespace mtl::host_cuda {

namespace {

struct Wanted {
  bool races = false, counts = false;
  const char* report = nullptr;
};
Wanted wanted() {
  Wanted all;
  all.report = std::getenv("MTL_PTX_REPORT");
  const char* const said = std::getenv("MTL_PTX_WATCH");
  std::string_view left = said != nullptr ? said : "";
  while (!left.empty()) {
    const std::string_view word = left.substr(0, left.find(','));
    left.remove_prefix(std::min(left.size(), word.size() + 1));
    if (word == "races") {
      all.races = true;
    } else if (word == "counts" && all.report != nullptr) {
      all.counts = true;
    } else {
      std::fprintf(stderr,
                   "host cuda: MTL_PTX_WATCH=%s: give races, or counts with a file in "
                   "MTL_PTX_REPORT, or both\n",
                   said);
      std::exit(2);
    }
  }
  return all;
}

// Of all launches. Kernels may run until the process has ended.
struct Report {
  const Wanted asked = wanted();
  std::mutex mutex;
  ptx::Counts counts;
  std::map<std::string, uint64_t> races;
  std::set<std::shared_ptr<const ptx::Module>> modules;  // of what is counted

  Report() {
    if (asked.report != nullptr) std::atexit([] { all().write(); });
  }
  static Report& all() {
    static Report& everything = *new Report;
    return everything;
  }
  // Behind what other processes have written.
  void write();
};

void Report::write() {
  const std::scoped_lock lock(mutex);
  std::string text = fmt::format("process {}\n", getpid());
  if (asked.counts) {
    std::vector<const ptx::Module*> all;
    for (const auto& module : modules) all.push_back(module.get());
    text += counts.report(40, all);
  }
  for (const auto& [words, times] : races)
    text += fmt::format("\nrace, {} times: {}\n", times, words);
  if (asked.races && races.empty()) text += "no races\n";
  std::FILE* const file = std::fopen(asked.report, "a");
  if (file == nullptr || std::fwrite(text.data(), 1, text.size(), file) != text.size()) {
    std::fprintf(stderr, "host cuda: %s cannot be written\n", asked.report);
  }
  if (file != nullptr) std::fclose(file);
}

}  // namespace

void run_watched(const std::shared_ptr<const ptx::Module>& module, ptx::Launch launch) {
  Report& report = Report::all();
  const Wanted& asked = report.asked;
  // With a report all of them are told, else the first is the end of the GPU.
  ptx::Races races({.stop = asked.report == nullptr});
  ptx::Counts counts;
  if (asked.races) launch.watchers.push_back(&races);
  if (asked.counts) launch.watchers.push_back(&counts);
  ptx::run(launch);
  if (asked.report == nullptr || launch.watchers.empty()) return;
  const std::scoped_lock lock(report.mutex);
  report.modules.insert(module);
  report.counts.add(counts);
  for (const ptx::Race& race : races.found()) report.races[race.text] += race.times;
}

}  // namespace mtl::host_cuda
