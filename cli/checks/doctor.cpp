// mtl doctor: what is wrong with this machine, or with several, and the cure.
#include "launcher/doctor/doctor.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/command_line.h"
#include "cli/commands.h"
#include "cli/launch_flags.h"
#include "cli/run_request.h"
#include "common/error.h"
#include "common/terminal.h"
#include "common/version.h"
#include "launcher/system/own_program.h"
#include "runtime/device/load_cuda.h"

namespace mtl {

namespace {

using Json = nlohmann::ordered_json;

// What CUDA itself says is asked only where there is a driver.
std::vector<Finding> examine_gpus(const NodeHardware& hardware) {
  DriverFacts facts = read_driver();
  facts.plugin = has_cuda_library();
  facts.nccl_needed = hardware.gpus.size() > 1;
  if ((facts.files || !facts.module.empty()) && facts.plugin) {
    try {
      const CudaFacts found = load_cuda().facts(false);
      facts.cuda_driver = found.driver;
      facts.cuda_runtime = found.runtime;
      for (const CudaDeviceFacts& gpu : found.devices) {
        facts.gpus.push_back({gpu.name, gpu.refusal});
      }
    } catch (const Error& error) {
      const Diagnostic& why = error.diagnostics().front();
      facts.refusal = fmt::format("{} [{}]", why.what, why.code);
      facts.refusal_help = why.help;
    }
  }
  return judge_driver(facts);
}

std::vector<Finding> examine_all(const DoctorOptions& options, const NodeHardware& hardware) {
  std::vector<Finding> all = examine_gpus(hardware);
  const std::vector<Finding> rest = examine_machine(options, hardware);
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

// What was found: on this machine, or on each of several and between them.
struct Diagnosis {
  std::vector<Finding> findings;
  std::vector<HostReport> reports;  // of several machines

  std::vector<std::string> hosts() const {
    std::vector<std::string> names;
    for (const HostReport& report : reports) names.push_back(report.host);
    return names;
  }
};

Diagnosis examine(const LaunchRequest& request, const DoctorOptions& options,
                  const NodeHardware& hardware) {
  if (request.mode != LaunchRequest::Mode::hosts) return {examine_all(options, hardware), {}};
  Diagnosis found;
  found.reports = examine_hosts(
      {.hosts = request.hosts,
       .program = request.remote_program.empty() ? own_program() : request.remote_program,
       .ssh_config = request.ssh_config,
       .ssh_command = request.ssh_command,
       .options = options});
  std::vector<Finding>& all = found.findings;
  for (const HostReport& report : found.reports) {
    all.insert(all.end(), report.findings.begin(), report.findings.end());
  }
  const std::vector<Finding> together = compare_hosts(found.reports);
  all.insert(all.end(), together.begin(), together.end());
  return found;
}

std::string default_run_dir() {
  const char* const variable = std::getenv("MTL_RUN__DIR");
  return variable != nullptr && *variable != '\0' ? variable : "runs";
}

std::string finding_text(const Finding& finding, int columns, bool color) {
  const char* const word = finding.level == Finding::Level::ok        ? "ok"
                           : finding.level == Finding::Level::warning ? "warning"
                                                                      : "PROBLEM";
  const char* const tint = finding.level == Finding::Level::ok        ? "\x1b[32m"
                           : finding.level == Finding::Level::warning ? "\x1b[33m"
                                                                      : "\x1b[31m";
  std::string text = color ? fmt::format("{}{:<8}\x1b[0m", tint, word) : fmt::format("{:<8}", word);
  text += wrap_text(finding.what, columns, 8, 8) + '\n';
  if (!finding.cure.empty()) {
    text += "        cure: " + wrap_text(finding.cure, columns, 14, 14) + '\n';
  }
  return text;
}

std::string summary(const std::vector<Finding>& findings) {
  size_t problems = 0, warnings = 0;
  for (const Finding& finding : findings) {
    problems += finding.level == Finding::Level::problem;
    warnings += finding.level == Finding::Level::warning;
  }
  const auto count = [](size_t n, const char* one) {
    return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s");
  };
  if (problems == 0 && warnings == 0) return "all is well";
  if (problems == 0) return fmt::format("no problem, {}", count(warnings, "warning"));
  return fmt::format("{}, {}", count(problems, "problem"), count(warnings, "warning"));
}

std::string text_of(const std::vector<Finding>& findings, int columns, bool color) {
  std::string text, host;
  for (const Finding& finding : findings) {
    if (finding.host != host) {
      host = finding.host;
      text += fmt::format("{}{}\n", text.empty() ? "" : "\n", host.empty() ? "together" : host);
    }
    text += finding_text(finding, columns, color);
  }
  return text + fmt::format("\n{}\n", summary(findings));
}

std::string paste_text(const HostFacts& facts, const std::vector<Finding>& findings,
                       const std::vector<std::string>& hosts) {
  std::string text = "mtl doctor --paste\n```\n";
  for (const auto& [name, value] : facts) text += fmt::format("{:<8} {}\n", name, value);
  text += '\n' + text_of(findings, 1000, false) + "```\n";
  return without_secrets(text, read_secrets(hosts));
}

std::string json_text(const HostFacts& facts, const Diagnosis& found) {
  Json list = Json::array(), machine = Json::object(), hosts = Json::array();
  for (const Finding& finding : found.findings) list.push_back(to_json(finding));
  for (const auto& [name, value] : facts) machine[name] = value;
  for (const HostReport& report : found.reports) {
    Json entry = {{"host", report.host}, {"facts", Json::object()}};
    for (const auto& [name, value] : report.facts) entry["facts"][name] = value;
    if (report.clock_ahead_s) entry["clock_ahead_s"] = *report.clock_ahead_s;
    hosts.push_back(entry);
  }
  const Json all = {{"schema", "mtl.doctor/1"}, {"ok", !has_problem(found.findings)},
                    {"mtl", version()},         {"machine", machine},
                    {"hosts", hosts},           {"findings", list}};
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + '\n';
}

}  // namespace

int command_doctor(const Arguments& args) {
  bool json = false, paste = false, agent = false;
  std::string run_dir;
  LaunchGiven given;
  CommandLine line(
      {"doctor [--json | --paste]", "doctor --hosts A,B [the flags of mtl launch]"},
      "Looks for what may keep a run from working: GPU driver and libraries, limits, memory, "
      "/dev/shm, disk, names, ports and clock of this machine; with --hosts or --hostfile, of each "
      "of them, by ssh, and whether they reach each other and are alike. Starts no run.");
  line.example("mtl doctor", "this machine");
  line.example("mtl doctor --hosts a,b", "two machines, and the way between them");
  line.example("mtl doctor --paste", "a block for a bug report, without names");
  line.group("The examination");
  line.flag("json", json, "one JSON document, schema mtl.doctor/1");
  line.flag("paste", paste, "for a bug report: no user, host, home, address or token");
  line.option("run_dir", "DIR", run_dir, "where runs will be written", "runs");
  line.declare({.name = "agent",
                .is_flag = true,
                .help = "the far side of --hosts",
                .hidden = true,
                .set = [&](const std::string& value) {
                  agent = value == "true";
                  return std::optional<std::string>();
                }});
  declare_check_flags(line, given.flags);
  line.footnote("Exit code: 0 there is no problem (warnings do not count), 4 there is one.");
  if (!line.parse(args)) return 0;
  refuse_launch_only_flags(given, "doctor");

  const NodeHardware hardware = inspect_hardware(true);
  const HostFacts facts = read_host_facts(hardware);
  if (agent) {
    run_doctor_agent(STDIN_FILENO, STDOUT_FILENO, facts,
                     [&](const DoctorOptions& options) { return examine_all(options, hardware); });
    return 0;
  }
  read_launch_environment(given);
  Diagnostics diagnostics;
  const LaunchConfig file = load_launch_config(given, diagnostics);
  const LaunchRequest request = resolve_launch(file, given, true, diagnostics);
  diagnostics.throw_if_errors();

  DoctorOptions options;
  options.run_dir = run_dir.empty() ? default_run_dir() : run_dir;
  // A launch from here writes to the folder of this path on every host, wherever ssh begins there.
  if (request.mode == LaunchRequest::Mode::hosts) {
    options.run_dir = std::filesystem::absolute(options.run_dir).string();
  }
  options.port = request.master_port > 0 ? request.master_port : request.port;
  options.several_hosts = request.mode != LaunchRequest::Mode::local;
  const Diagnosis found = examine(request, options, hardware);
  std::string text;
  if (json) {
    text = json_text(facts, found);
    if (paste) text = without_secrets(text, read_secrets(found.hosts()));
  } else if (paste) {
    text = paste_text(facts, found.findings, found.hosts());
  } else {
    text = text_of(found.findings, std::max(60, terminal_columns(STDOUT_FILENO)),
                   inspect_terminal(STDOUT_FILENO).color);
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return has_problem(found.findings) ? static_cast<int>(Exit::environment) : 0;
}

}  // namespace mtl
