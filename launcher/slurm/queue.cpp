#include "launcher/slurm/queue.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <sstream>
#include <string_view>

#include "common/text.h"
#include "launcher/slurm/control.h"
#include "launcher/slurm/job_options.h"

namespace mtl {

namespace {

template <size_t N>
bool one_of(const std::string& word, const std::array<std::string_view, N>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

int whole(std::string_view text, int otherwise = 0) {
  int number = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

// "3:0", "0:15".
int exit_code_of(const std::string& text) {
  const size_t colon = text.find(':');
  const int signal =
      colon == std::string::npos ? 0 : whole(std::string_view(text).substr(colon + 1));
  return signal != 0 ? 128 + signal : whole(text);
}

// SLURM pads what it knows with the patterns of --output.
std::string without_patterns(std::string path, const SlurmJobState& job) {
  for (const auto& [mark, value] : std::map<std::string, std::string>{
           {"%j", job.raw_id},
           {"%A", job.id.substr(0, job.id.find('_'))},
           {"%a", job.id.find('_') == std::string::npos ? std::string("0")
                                                        : job.id.substr(job.id.find('_') + 1)},
           {"%%", "%"}}) {
    for (size_t at = 0; (at = path.find(mark, at)) != std::string::npos; at += value.size()) {
      path.replace(at, mark.size(), value);
    }
  }
  return path;
}

std::string without_newline(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

// Of `sacct -n -P -X`: state words like "CANCELLED by 0".
std::vector<SlurmJobState> ask_sacct(const std::string& id) {
  const CommandAnswer answer =
      ask_slurm({"sacct", "-n", "-P", "-X", "-j", id, "-o",
                 "JobID,JobIDRaw,JobName,State,ExitCode,NNodes,NodeList,ElapsedRaw"});
  std::vector<SlurmJobState> jobs;
  if (!answer.ok()) return jobs;
  for (const std::string& line : lines_of(answer.out)) {
    std::vector<std::string> cells;
    std::istringstream in(line);
    for (std::string cell; std::getline(in, cell, '|');) cells.push_back(cell);
    if (cells.size() < 8) continue;
    SlurmJobState job;
    job.id = cells[0];
    job.raw_id = cells[1];
    job.name = cells[2];
    job.state = cells[3].substr(0, cells[3].find(' '));
    job.exit_code = exit_code_of(cells[4]);
    job.nodes = whole(cells[5]);
    job.node_list = cells[6];
    job.run_s = whole(cells[7]);
    jobs.push_back(job);
  }
  return jobs;
}

}  // namespace

const char* const kSqueueFormat = "%i\x1f%A\x1f%j\x1f%T\x1f%r\x1f%D\x1f%N\x1f%M\x1f%o";

bool SlurmJobState::pending() const {
  return one_of<5>(state, {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"});
}

bool SlurmJobState::running() const {
  return one_of<8>(state, {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED",
                           "SIGNALING", "STAGE_OUT", "RESIZING"});
}

std::vector<SlurmJobState> read_scontrol_jobs(const std::string& text) {
  std::vector<SlurmJobState> jobs;
  for (const std::string& line : lines_of(text)) {
    SlurmJobState job;
    job.raw_id = control_field(line, "JobId");
    if (job.raw_id.empty()) continue;
    const std::string array = control_field(line, "ArrayJobId");
    const std::string task = control_field(line, "ArrayTaskId");
    job.id = array.empty() || task.empty() ? job.raw_id : array + "_" + task;
    job.name = control_field(line, "JobName");
    job.state = control_field(line, "JobState");
    job.reason = control_field(line, "Reason");
    job.exit_code = exit_code_of(control_field(line, "ExitCode"));
    job.restarts = whole(control_field(line, "Restarts"));
    job.nodes = whole(control_field(line, "NumNodes"));
    job.node_list = control_field(line, "NodeList");
    job.run_s = slurm_seconds(control_field(line, "RunTime")).value_or(0);
    job.output = without_patterns(control_field(line, "StdOut"), job);
    job.script = control_field(line, "Command");
    jobs.push_back(job);
  }
  return jobs;
}

std::vector<SlurmJobState> read_squeue_jobs(const std::string& text) {
  std::vector<SlurmJobState> jobs;
  for (const std::string& line : lines_of(text)) {
    std::vector<std::string> cells(1);
    for (const char c : line) {
      if (c == '\x1f') {
        cells.emplace_back();
      } else {
        cells.back() += c;
      }
    }
    if (cells.size() < 9) continue;
    SlurmJobState job;
    job.id = cells[0];
    job.raw_id = cells[1];
    job.name = cells[2];
    job.state = cells[3];
    job.reason = cells[4] == "None" ? "" : cells[4];
    job.nodes = whole(cells[5]);
    job.node_list = cells[6];
    job.run_s = slurm_seconds(cells[7]).value_or(0);
    job.script = cells[8];
    jobs.push_back(job);
  }
  return jobs;
}

std::vector<SlurmJobState> slurm_job_states(const std::string& id, std::string* error) {
  const CommandAnswer answer = ask_slurm({"scontrol", "-o", "show", "job", id});
  std::vector<SlurmJobState> jobs = read_scontrol_jobs(answer.out);
  if (!jobs.empty()) return jobs;
  if (!answer.missing) jobs = ask_sacct(id);
  if (jobs.empty() && error != nullptr) *error = without_newline(answer.err);
  return jobs;
}

std::optional<std::vector<SlurmJobState>> my_slurm_jobs(bool ended, std::string* error,
                                                        std::chrono::milliseconds within) {
  std::vector<std::string> argv = {"squeue", "--me", "-h", "-r", "-o", kSqueueFormat};
  if (ended) argv.insert(argv.end(), {"-t", "all"});
  const CommandAnswer answer = ask_slurm(argv, within);
  if (answer.ok()) return read_squeue_jobs(answer.out);
  // The programs may be there without a cluster.
  const bool cluster = answer.err.find("configuration source") == std::string::npos &&
                       answer.err.find("fetch config") == std::string::npos;
  if (error != nullptr && !answer.missing && cluster) {
    *error = answer.late ? "squeue does not answer" : without_newline(answer.err);
    *error = error->substr(0, error->find('\n'));
  }
  return std::nullopt;
}

std::string slurm_reason_words(const std::string& reason) {
  static const std::map<std::string, std::string> kWords = {
      {"Resources", "waiting for free nodes"},
      {"Priority", "others are before it"},
      {"Dependency", "waiting for another job"},
      {"DependencyNeverSatisfied", "the job that it waits for has failed: stop it"},
      {"BeginTime", "it may not start before its time (a requeued job waits two minutes)"},
      {"JobHeldUser", "held by its user: scontrol release"},
      {"JobHeldAdmin", "held by the administrator"},
      {"PartitionNodeLimit", "more nodes than the partition gives to a job"},
      {"PartitionTimeLimit", "longer than the partition allows"},
      {"PartitionDown", "the partition is down"},
      {"PartitionInactive", "the partition is inactive"},
      {"ReqNodeNotAvail", "nodes that it asks for are not available"},
      {"QOSMaxJobsPerUserLimit", "as many jobs of yours run as the QOS allows"},
      {"QOSMaxGRESPerUser", "as many GPUs of yours are in use as the QOS allows"},
      {"AssocGrpGRES", "the account has as many GPUs in use as it may"},
      {"AssocMaxJobsLimit", "as many jobs of yours run as the account allows"},
      {"JobArrayTaskLimit", "as many tasks of the array run as it allows"},
      {"Licenses", "waiting for a licence"},
      {"Reservation", "waiting for the reservation"}};
  const auto found = kWords.find(reason.substr(0, reason.find(',')));
  return found == kWords.end() ? reason : found->second;
}

std::string slurm_end_words(const SlurmJobState& job) {
  static const std::map<std::string, std::string> kWords = {
      {"TIMEOUT", "the time limit was reached: more of it is --slurm_time"},
      {"CANCELLED", "it was cancelled"},
      {"NODE_FAIL", "a node failed"},
      {"PREEMPTED", "it was preempted by a job of higher priority"},
      {"OUT_OF_MEMORY", "it used more memory than it asked for: more of it is --slurm_mem"},
      {"BOOT_FAIL", "its nodes did not start"},
      {"DEADLINE", "its deadline was reached"},
      {"REVOKED", "it was revoked"}};
  const auto found = kWords.find(job.state);
  return found == kWords.end() ? std::string() : found->second;
}

}  // namespace mtl
