#include "launcher/job/jobs.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <fstream>
#include <map>

#include <nlohmann/json.hpp>

#include "launcher/slurm/job_logs.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

constexpr const char* kUnknown = "UNKNOWN";

nlohmann::json status_of(const fs::path& run) {
  std::ifstream in(run / "status.json");
  return in ? nlohmann::json::parse(in, nullptr, false) : nlohmann::json();
}

double number_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_number() ? found->get<double>() : NAN;
}

std::string word_of(const nlohmann::json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

std::vector<SlowRank> slow_ranks(const nlohmann::json& status) {
  std::vector<SlowRank> all;
  const auto found = status.find("stragglers");
  if (found == status.end() || !found->is_array()) return all;
  for (const nlohmann::json& one : *found) {
    const double rank = one.is_object() ? number_of(one, "rank") : NAN;
    if (!(rank >= 0 && rank <= INT_MAX)) continue;
    all.push_back({.rank = static_cast<int>(rank),
                   .host = word_of(one, "host"),
                   .device = word_of(one, "device"),
                   .phase = word_of(one, "phase"),
                   .factor = number_of(one, "factor"),
                   .job_speed = number_of(one, "job_speed")});
  }
  const auto factor = [](const SlowRank& one) {
    return std::isfinite(one.factor) ? one.factor : 0;
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const SlowRank& a, const SlowRank& b) { return factor(a) > factor(b); });
  return all;
}

// As long as a run that is well is never silent for (runtime/metrics/run_state).
bool written_lately(const fs::path& file) {
  std::error_code error;
  const auto written = fs::last_write_time(file, error);
  return !error && fs::file_time_type::clock::now() - written < std::chrono::hours(1);
}

// Of a folder runs/NAME the newest run that began after the job was given in.
fs::path run_of(const std::string& text, int64_t since) {
  const fs::path path = text;
  std::error_code ignored;
  if (text.empty() || fs::exists(path / "resolved.yaml", ignored)) return path;
  fs::path newest;
  for (const auto& entry : fs::directory_iterator(path, ignored)) {
    if (!fs::exists(entry.path() / "resolved.yaml", ignored)) continue;
    if (newest.empty() || newest.filename() < entry.path().filename()) newest = entry.path();
  }
  if (newest.empty()) return path;
  const auto written = fs::last_write_time(newest / "plan.json", ignored);
  if (ignored) return path;
  const auto age = fs::file_time_type::clock::now() - written;
  const int64_t when =
      std::time(nullptr) - std::chrono::duration_cast<std::chrono::seconds>(age).count();
  return when >= since ? newest : path;
}

bool is_array_task(const JobView& view) {
  return view.where == "slurm" && view.id.find('_') != std::string::npos;
}

void add_progress(JobView& view, int64_t since) {
  const fs::path run = run_of(view.run, since);
  if (run.empty()) return;
  view.run = run.string();
  const nlohmann::json status = status_of(run);
  if (!status.is_object()) return;
  if (const double step = number_of(status, "step"); step >= 0) {
    view.step = static_cast<int64_t>(step);
  }
  if (const double steps = number_of(status, "steps"); steps >= 0) {
    view.steps = static_cast<int64_t>(steps);
  }
  view.loss = number_of(status, "loss");
  const std::string word = word_of(status, "state");
  // Of a run that waits to go on, speed and time left are those of its last start.
  const bool waits = SlurmJobState{.state = view.state}.pending();
  if (view.live && !waits && word == "running") {
    view.tokens_per_s = number_of(status, "tokens_per_s");
    view.eta_s = number_of(status, "eta_s");
    view.slow = slow_ranks(status);
  }
  if (view.live || word.empty()) return;
  if (view.where == "slurm") {
    // To SLURM everything but 0 has failed.
    if (view.state == "FAILED" && word == "stopped") view.state = "STOPPED";
    return;
  }
  if (word == "running" && view.state == kUnknown && written_lately(run / "status.json")) {
    view.state = "RUNNING";
  }
  if (word == "done") view.state = "DONE";
  if (word == "stopped") view.state = "STOPPED";
  if (word == "failed") view.state = "FAILED";
}

// The launch inside the job knows more than who submitted it.
void add_record(JobView& view, const JobRecord& record, bool of_job) {
  if (view.name.empty()) view.name = record.name;
  if (view.log.empty()) view.log = record.log;
  const bool better = of_job && record.pid > 0;
  // Who submits an array knows the run of its first task only; each says its own when it begins.
  const bool known = !is_array_task(view) || better;
  if (known && !record.run.empty() && (view.run.empty() || better)) view.run = record.run;
  if (view.nodes == 0) view.nodes = record.nodes;
}

// What the record and its run say, of SLURM's nothing.
JobView view_of(const JobRecord& record) {
  const bool slurm = record.kind == "slurm";
  const bool alive = !slurm && is_alive(record);
  JobView view{.id = record.id, .name = record.name, .where = record.kind};
  // On another machine nobody can see it; that it is there is all that is known.
  const bool elsewhere = !slurm && record.host != host_name();
  view.state = alive ? "RUNNING" : slurm ? "ENDED" : elsewhere ? kUnknown : "LOST";
  if (elsewhere) view.reason = std::string("on ").append(record.host);
  view.live = alive;
  view.pid = alive ? record.pid : 0;
  view.host = record.host;
  add_record(view, record, slurm);
  if (alive) view.run_s = std::time(nullptr) - record.when;
  add_progress(view, record.when);
  return view;
}

// Where its run is; "" while it is only known in which folder it will be.
std::string known_run(const JobView& view) {
  std::error_code ignored;
  const fs::path run = view.run;
  const bool known = view.where == "local" || view.where == "ssh" ||
                     (!run.empty() && fs::exists(run / "resolved.yaml", ignored));
  return known ? run.lexically_normal().string() : std::string();
}

std::string base_of(const std::string& id) {
  return id.substr(0, id.find('_'));
}

}  // namespace

bool is_slurm_id(const std::string& text) {
  return !text.empty() && text[0] >= '0' && text[0] <= '9' &&
         text.find_first_not_of("0123456789_") == std::string::npos;
}

bool is_job_script(const fs::path& script) {
  std::ifstream in(script);
  std::string text(1 << 16, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(std::max<std::streamsize>(in.gcount(), 0)));
  return text.starts_with("#!") && text.find("\nexport MTL_JOB_SCRIPT=") != std::string::npos;
}

bool is_record_of(const JobRecord& record, const SlurmJobState& job) {
  const bool same = record.id == job.id || record.id == job.raw_id ||
                    (record.id == base_of(job.id) && record.pid == 0);
  return record.kind == "slurm" && same;
}

JobView view_of(const SlurmJobState& job) {
  JobView view{.id = job.id, .name = job.name, .where = "slurm", .state = job.state};
  view.reason = job.pending() ? job.reason : "";
  view.nodes = job.nodes;
  view.run_s = job.run_s;
  view.log = job.output;
  view.live = !job.ended();
  return view;
}

std::vector<JobView> join_jobs(const std::vector<JobRecord>& records,
                               const std::optional<std::vector<SlurmJobState>>& queue, bool ended) {
  std::vector<std::pair<int64_t, JobView>> views;
  std::vector<std::string> seen;  // ids of SLURM
  const auto records_of = [&](const SlurmJobState& job) {
    std::vector<const JobRecord*> found;
    for (const JobRecord& record : records) {
      if (is_record_of(record, job)) found.push_back(&record);
    }
    return found;
  };
  for (const SlurmJobState& job : queue.value_or(std::vector<SlurmJobState>())) {
    const auto known = records_of(job);
    seen.push_back(job.id);
    seen.push_back(job.raw_id);
    seen.push_back(base_of(job.id));
    if (job.ended() && !ended) continue;
    if (known.empty() && !is_job_script(job.script)) continue;
    JobView view = view_of(job);
    int64_t when = 0;
    for (const JobRecord* record : known) {
      add_record(view, *record, true);
      view.log = log_of_task(view.log, view.id);
      when = std::max(when, record->when);
    }
    if (known.empty() && !is_array_task(view)) {
      // Given in by hand: what lies beside the script says more.
      std::ifstream in(fs::path(job.script).parent_path() / "job.json");
      const nlohmann::json json = nlohmann::json::parse(in, nullptr, false);
      if (json.is_object() && json.contains("run") && json["run"].is_string()) {
        view.run = json["run"].get<std::string>();
      }
    }
    add_progress(view, when);
    views.emplace_back(when != 0 ? when : std::time(nullptr), std::move(view));
  }
  for (const JobRecord& record : records) {
    const bool slurm = record.kind == "slurm";
    if (slurm && std::find(seen.begin(), seen.end(), record.id) != seen.end()) continue;
    if (!ended && (slurm || !is_alive(record))) continue;
    if (slurm) seen.push_back(record.id);
    views.emplace_back(record.when, view_of(record));
  }
  std::stable_sort(views.begin(), views.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<JobView> sorted;
  for (auto& [when, view] : views) sorted.push_back(std::move(view));
  return sorted;
}

std::vector<JobView> newest_starts(const std::vector<JobView>& newest_first) {
  std::vector<JobView> kept;
  std::map<std::string, size_t> of_run;  // where in `kept` the newest start of each run is
  for (const JobView& view : newest_first) {
    const std::string run = known_run(view);
    const auto newer = run.empty() ? of_run.end() : of_run.find(run);
    if (newer != of_run.end()) ++kept[newer->second].starts;
    if (newer != of_run.end() && !view.live) continue;
    if (newer == of_run.end() && !run.empty()) of_run.emplace(run, kept.size());
    kept.push_back(view);
  }
  return kept;
}

int unended_elsewhere(const std::vector<JobRecord>& records) {
  const auto may_run = [](const JobRecord& record) {
    if (record.kind == "slurm" || record.host == host_name()) return false;
    const std::string state = view_of(record).state;
    return state == "RUNNING" || state == kUnknown;
  };
  return static_cast<int>(std::count_if(records.begin(), records.end(), may_run));
}

std::vector<JobView> job_views(bool ended, std::string* warning) {
  const auto queue = my_slurm_jobs(ended, warning);
  return join_jobs(recorded_jobs(), queue, ended);
}

std::vector<JobView> matching_jobs(const std::vector<JobView>& jobs, const std::string& text) {
  const auto those = [&](auto&& fits) {
    std::vector<JobView> found;
    std::copy_if(jobs.begin(), jobs.end(), std::back_inserter(found), fits);
    return found;
  };
  if (auto found = those([&](const JobView& job) { return job.id == text; }); !found.empty()) {
    return found;
  }
  if (is_slurm_id(text)) {
    return those(
        [&](const JobView& job) { return job.where == "slurm" && job.id.starts_with(text + "_"); });
  }
  std::error_code ignored;
  fs::path path = fs::weakly_canonical(fs::absolute(text, ignored), ignored);
  if (!path.has_filename()) path = path.parent_path();
  // What the system refuses to look up is empty, and no two of these are one.
  if (auto found = those([&](const JobView& job) {
        const fs::path run = fs::weakly_canonical(job.run, ignored);
        return !run.empty() && !path.empty() && (run == path || run.parent_path() == path);
      });
      !found.empty()) {
    return found;
  }
  return those([&](const JobView& job) { return job.name == text; });
}

}  // namespace mtl
