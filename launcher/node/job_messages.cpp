#include "launcher/node/job_messages.h"

#include <charconv>

#include <nlohmann/json.hpp>

#include "common/text.h"

namespace mtl {

namespace {

using nlohmann::json;

// Output of programs may be anything; JSON is UTF-8. Bytes travel as Latin-1 code points.
std::string to_text(const std::string& bytes) {
  std::string text;
  text.reserve(bytes.size() + 8);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x80) {
      text += c;
    } else {
      text += static_cast<char>(0xC0 | (byte >> 6));
      text += static_cast<char>(0x80 | (byte & 0x3F));
    }
  }
  return text;
}

std::string to_bytes(const std::string& text) {
  std::string bytes;
  bytes.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80 || i + 1 == text.size()) {
      bytes += text[i];
    } else {
      ++i;
      bytes +=
          static_cast<char>(((byte & 0x03) << 6) | (static_cast<unsigned char>(text[i]) & 0x3F));
    }
  }
  return bytes;
}

json texts(const std::vector<std::string>& values) {
  json all = json::array();
  for (const std::string& value : values) all.push_back(to_text(value));
  return all;
}
std::vector<std::string> bytes_of(const json& values) {
  std::vector<std::string> all;
  for (const json& value : values) all.push_back(to_bytes(value.get<std::string>()));
  return all;
}

json to_json(const std::map<std::string, std::string>& map) {
  json object = json::object();
  for (const auto& [name, value] : map) object[to_text(name)] = to_text(value);
  return object;
}
std::map<std::string, std::string> map_of(const json& object) {
  std::map<std::string, std::string> map;
  for (const auto& [name, value] : object.items()) {
    map[to_bytes(name)] = to_bytes(value.get<std::string>());
  }
  return map;
}

json to_json(const std::map<int, int>& map) {
  json all = json::array();
  for (const auto& [key, value] : map) all.push_back({key, value});
  return all;
}
std::map<int, int> int_map_of(const json& all) {
  std::map<int, int> map;
  for (const json& entry : all) map[entry.at(0).get<int>()] = entry.at(1).get<int>();
  return map;
}

json to_json(std::chrono::system_clock::time_point when) {
  using std::chrono::nanoseconds;
  return std::chrono::duration_cast<nanoseconds>(when.time_since_epoch()).count();
}
std::chrono::system_clock::time_point time_of(const json& nanoseconds) {
  using std::chrono::system_clock;
  const std::chrono::nanoseconds since_epoch(nanoseconds.get<int64_t>());
  return system_clock::time_point(std::chrono::duration_cast<system_clock::duration>(since_epoch));
}

json to_json(const NodeOffer& offer) {
  return {{"host", to_text(offer.host)}, {"key", to_text(offer.key)},
          {"slots", offer.slots},        {"rank", offer.rank},
          {"position", offer.position},  {"addresses", texts(offer.addresses)},
          {"port", offer.port},          {"machine", to_text(offer.machine)},
          {"on_gpus", offer.on_gpus}};
}
NodeOffer offer_of(const json& object) {
  NodeOffer offer;
  offer.host = to_bytes(object.at("host"));
  offer.key = to_bytes(object.at("key"));
  offer.slots = object.at("slots");
  offer.rank = object.at("rank");
  offer.position = object.at("position");
  offer.addresses = bytes_of(object.at("addresses"));
  offer.port = object.at("port");
  // Another version may not say these, and is refused for being one.
  offer.machine = to_bytes(object.value("machine", std::string()));
  offer.on_gpus = object.value("on_gpus", false);
  return offer;
}

json to_json(const JobProgram& program) {
  return {{"argv", texts(program.argv)},
          {"env", to_json(program.env)},
          {"inherited", to_json(program.inherited)},
          {"cwd", to_text(program.working_directory)},
          {"log_dir", to_text(program.log_dir)},
          {"needed_files", texts(program.needed_files)},
          {"ours", program.is_ours},
          {"threads", program.threads},
          {"takes_signals", program.takes_signals},
          {"numbered", program.numbered}};
}
JobProgram program_of(const json& object) {
  JobProgram program;
  program.argv = bytes_of(object.at("argv"));
  program.env = map_of(object.at("env"));
  program.inherited = map_of(object.at("inherited"));
  program.working_directory = to_bytes(object.at("cwd"));
  program.log_dir = to_bytes(object.at("log_dir"));
  program.needed_files = bytes_of(object.at("needed_files"));
  program.is_ours = object.at("ours");
  program.threads = object.at("threads");
  program.takes_signals = object.value("takes_signals", false);
  program.numbered = object.at("numbered");
  return program;
}

json to_json(const LogOptions& logs) {
  return {{"dir", to_text(logs.dir.string())}, {"console_default", logs.console_default},
          {"console", to_json(logs.console)},  {"redirected", to_json(logs.redirected)},
          {"only", logs.only_local_ranks},     {"prefix", logs.prefix},
          {"host", to_text(logs.host)},        {"rotate_bytes", logs.rotate_bytes},
          {"rotate_keep", logs.rotate_keep}};
}
LogOptions logs_of(const json& object) {
  LogOptions logs;
  logs.dir = to_bytes(object.at("dir"));
  logs.console_default = object.at("console_default");
  logs.console = int_map_of(object.at("console"));
  logs.redirected = int_map_of(object.at("redirected"));
  logs.only_local_ranks = object.at("only").get<std::vector<int>>();
  logs.prefix = object.at("prefix");
  logs.host = to_bytes(object.at("host"));
  logs.rotate_bytes = object.at("rotate_bytes");
  logs.rotate_keep = object.at("rotate_keep");
  return logs;
}

json to_json(const Diagnostic& diagnostic) {
  json object = {{"code", diagnostic.code},
                 {"what", to_text(diagnostic.what)},
                 {"notes", texts(diagnostic.notes)},
                 {"help", to_text(diagnostic.help)},
                 {"warning", diagnostic.severity == Diagnostic::Severity::warning}};
  if (diagnostic.place) {
    object["place"] = {to_text(diagnostic.place->file), diagnostic.place->line,
                       diagnostic.place->column};
  }
  return object;
}
Diagnostic diagnostic_of(const json& object) {
  Diagnostic diagnostic;
  diagnostic.code = object.at("code");
  diagnostic.what = to_bytes(object.at("what"));
  diagnostic.notes = bytes_of(object.at("notes"));
  diagnostic.help = to_bytes(object.at("help"));
  if (object.at("warning").get<bool>()) diagnostic.severity = Diagnostic::Severity::warning;
  if (object.contains("place")) {
    const json& place = object["place"];
    diagnostic.place = Place{to_bytes(place.at(0)), place.at(1), place.at(2)};
  }
  return diagnostic;
}
json to_json(const std::vector<Diagnostic>& diagnostics) {
  json all = json::array();
  for (const Diagnostic& diagnostic : diagnostics) all.push_back(to_json(diagnostic));
  return all;
}
std::vector<Diagnostic> diagnostics_of(const json& all) {
  std::vector<Diagnostic> diagnostics;
  for (const json& object : all) diagnostics.push_back(diagnostic_of(object));
  return diagnostics;
}

int64_t milliseconds_of(std::chrono::milliseconds time) {
  return time.count();
}

// Any malformed message, whatever is wrong with it, is no message.
template <typename Read>
auto decode(const std::string& body, Read read) -> std::optional<decltype(read(json()))> {
  try {
    return read(json::parse(body));
  } catch (const json::exception&) {
    return {};
  }
}

}  // namespace

std::string encode(const HelloMessage& message) {
  json object = {
      {"version", message.version},   {"host", to_text(message.host)},
      {"position", message.position}, {"nodes", message.nodes},
      {"ranks", message.ranks},       {"dead_after_ms", milliseconds_of(message.dead_after)}};
  if (message.offer) object["offer"] = to_json(*message.offer);
  return object.dump();
}
std::optional<HelloMessage> decode_hello_message(const std::string& body) {
  return decode(body, [](const json& object) {
    HelloMessage message;
    message.version = object.at("version");
    message.host = to_bytes(object.at("host"));
    message.position = object.value("position", -1);
    message.nodes = object.value("nodes", 0);
    message.ranks = object.value("ranks", 0);
    // Another version may not say it, and is refused for being one.
    message.dead_after = std::chrono::milliseconds(object.value("dead_after_ms", int64_t{0}));
    if (object.contains("offer")) message.offer = offer_of(object.at("offer"));
    return message;
  });
}

std::string encode(const NodeJob& job) {
  const json object = {{"program", to_json(job.program)},
                       {"config", to_text(launch_config_yaml(job.config))},
                       {"deepspeed_fields", to_text(job.config.deepspeed_fields)},
                       {"logs", to_json(job.logs)},
                       {"run_id", to_text(job.run_id)},
                       {"token", to_text(job.token)},
                       {"interface", to_text(job.interface)},
                       {"max_restarts", job.max_restarts},
                       {"slots", job.slots},
                       {"need_gpu", job.need_gpu},
                       {"position", job.position},
                       {"host", to_text(job.host)},
                       {"binding", static_cast<int>(job.binding)},
                       {"omp_threads", job.omp_threads},
                       {"master_port", job.master_port},
                       {"master_address", to_text(job.master_address)},
                       {"grace_ms", milliseconds_of(job.grace)},
                       {"warning_grace_ms", milliseconds_of(job.warning_grace)}};
  return object.dump();
}
std::optional<NodeJob> decode_node_job(const std::string& body) {
  return decode(body, [](const json& object) {
    NodeJob job;
    job.program = program_of(object.at("program"));
    Diagnostics ignored;  // it was checked where it came from
    job.config = parse_launch_config(to_bytes(object.at("config")), "", ignored);
    job.config.deepspeed_fields = to_bytes(object.at("deepspeed_fields"));
    job.logs = logs_of(object.at("logs"));
    job.run_id = to_bytes(object.at("run_id"));
    job.token = to_bytes(object.at("token"));
    job.interface = to_bytes(object.at("interface"));
    job.max_restarts = object.at("max_restarts");
    job.slots = object.at("slots");
    job.need_gpu = object.at("need_gpu");
    job.position = object.at("position");
    job.host = to_bytes(object.at("host"));
    job.binding = static_cast<Binding>(object.at("binding").get<int>());
    job.omp_threads = object.at("omp_threads");
    job.master_port = object.at("master_port");
    job.master_address = to_bytes(object.at("master_address"));
    job.grace = std::chrono::milliseconds(object.at("grace_ms").get<int64_t>());
    job.warning_grace = std::chrono::milliseconds(object.at("warning_grace_ms").get<int64_t>());
    return job;
  });
}

std::string encode(const NodeOffer& offer) {
  return to_json(offer).dump();
}
std::optional<NodeOffer> decode_offer(const std::string& body) {
  return decode(body, offer_of);
}

std::string encode(const std::vector<Diagnostic>& diagnostics) {
  return to_json(diagnostics).dump();
}
std::optional<std::vector<Diagnostic>> decode_diagnostics(const std::string& body) {
  return decode(body, diagnostics_of);
}

// The table goes as it is: it is by far the largest part, and thousands of nodes read it. In front
// of it the length of the JSON.
std::string encode(const AssignMessage& message) {
  json object = {{"node_rank", message.node_rank},
                 {"restart_count", message.restart_count},
                 {"failure_grace_ms", milliseconds_of(message.failure_grace)},
                 {"token", to_text(message.token)}};
  if (message.program) object["program"] = to_json(*message.program);
  const std::string text = object.dump();
  return std::to_string(text.size()) + "\n" + text + encode_roster(message.roster);
}
std::optional<AssignMessage> decode_assign(const std::string& body) {
  size_t length = 0;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), length);
  const auto digits = static_cast<size_t>(end - body.data());
  if (error != std::errc() || digits >= body.size() || body[digits] != '\n' ||
      length > body.size() - digits - 1) {
    return {};
  }
  const std::optional<Roster> roster =
      decode_roster(std::string_view(body).substr(digits + 1 + length));
  if (!roster) return {};
  return decode(body.substr(digits + 1, length), [&](const json& object) {
    AssignMessage message;
    message.node_rank = object.at("node_rank");
    message.restart_count = object.at("restart_count");
    message.failure_grace = std::chrono::milliseconds(object.at("failure_grace_ms").get<int64_t>());
    message.token = to_bytes(object.at("token"));
    if (object.contains("program")) message.program = program_of(object.at("program"));
    message.roster = *roster;
    return message;
  });
}

std::string encode(const OutputMessage& message) {
  return std::to_string(message.rank) + (message.is_stderr ? "e" : "o") + message.text;
}
std::optional<OutputMessage> decode_output(const std::string& body) {
  OutputMessage message;
  const auto [end, error] = std::from_chars(body.data(), body.data() + body.size(), message.rank);
  const auto digits = static_cast<size_t>(end - body.data());
  if (error != std::errc() || digits >= body.size()) return {};
  if (body[digits] != 'e' && body[digits] != 'o') return {};
  message.is_stderr = body[digits] == 'e';
  message.text = body.substr(digits + 1);
  return message;
}

std::string encode(const StopMessage& message) {
  return json({{"why", to_text(message.why)},
               {"grace_ms", milliseconds_of(message.grace)},
               {"kill", message.kill},
               {"signal", message.signal}})
      .dump();
}
std::optional<StopMessage> decode_stop(const std::string& body) {
  return decode(body, [](const json& object) {
    StopMessage message;
    message.why = to_bytes(object.at("why"));
    message.grace = std::chrono::milliseconds(object.at("grace_ms").get<int64_t>());
    message.kill = object.at("kill");
    message.signal = object.at("signal");
    return message;
  });
}

std::string encode(const StoppedMessage& message) {
  return json({{"warnings", texts(message.warnings)},
               {"errors", to_json(message.errors)},
               {"exit", message.exit_code}})
      .dump();
}
std::optional<StoppedMessage> decode_stopped(const std::string& body) {
  return decode(body, [](const json& object) {
    StoppedMessage message;
    message.warnings = bytes_of(object.at("warnings"));
    message.errors = diagnostics_of(object.at("errors"));
    message.exit_code = object.at("exit");
    return message;
  });
}

std::string encode(const WorkerEnd& end) {
  using std::chrono::duration_cast;
  return json({{"rank", end.rank},
               {"ranks", end.ranks},
               {"local_rank", end.local_rank},
               {"host", to_text(end.host)},
               {"pid", end.pid},
               {"exit", end.exit_code},
               {"signal", end.signal},
               {"stopped", end.stopped_by_us},
               {"when_ns", to_json(end.when)},
               {"last_lines", texts(end.last_lines)},
               {"log", to_text(end.log.string())},
               {"shown", end.shown},
               {"notes", texts(end.notes)}})
      .dump();
}
std::optional<WorkerEnd> decode_end(const std::string& body) {
  return decode(body, [](const json& object) {
    WorkerEnd end;
    end.rank = object.at("rank");
    end.ranks = object.at("ranks");
    end.local_rank = object.at("local_rank");
    end.host = to_bytes(object.at("host"));
    end.pid = object.at("pid");
    end.exit_code = object.at("exit");
    end.signal = object.at("signal");
    end.stopped_by_us = object.at("stopped");
    end.when = time_of(object.at("when_ns"));
    end.last_lines = bytes_of(object.at("last_lines"));
    end.log = to_bytes(object.at("log"));
    end.shown = object.at("shown");
    end.notes = bytes_of(object.at("notes"));
    return end;
  });
}

std::string encode(const FinishMessage& message) {
  return json({{"exit", message.exit_code}, {"report", to_json(message.report)}}).dump();
}
std::optional<FinishMessage> decode_finish(const std::string& body) {
  return decode(body, [](const json& object) {
    FinishMessage message;
    message.exit_code = object.at("exit");
    message.report = diagnostics_of(object.at("report"));
    return message;
  });
}

std::string encode(const ProblemsMessage& message) {
  return json({{"exit", message.exit_code}, {"errors", to_json(message.errors)}}).dump();
}
std::optional<ProblemsMessage> decode_problems(const std::string& body) {
  return decode(body, [](const json& object) {
    ProblemsMessage message;
    message.exit_code = object.at("exit");
    message.errors = diagnostics_of(object.at("errors"));
    return message;
  });
}

std::string encode(const InterruptedMessage& message) {
  const json object = {{"signal", message.signal}, {"when_ns", to_json(message.when)}};
  return object.dump();
}
std::optional<InterruptedMessage> decode_interrupted(const std::string& body) {
  return decode(body, [](const json& object) {
    InterruptedMessage message;
    message.signal = object.at("signal");
    message.when = time_of(object.at("when_ns"));
    return message;
  });
}

std::string encode_number(int64_t number) {
  return std::to_string(number);
}
std::optional<int64_t> decode_number(const std::string& body) {
  return to_number<int64_t>(body);
}

}  // namespace mtl
