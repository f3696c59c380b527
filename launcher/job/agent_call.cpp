// The line that tells an agent whom to dial.
#include <nlohmann/json.hpp>

#include "launcher/job/job.h"

namespace mtl {

std::string encode_agent_call(const AgentCall& call) {
  const nlohmann::json object = {
      {"token", call.token}, {"port", call.port}, {"addresses", call.addresses}};
  return std::string(kAgentMagic) + " " + object.dump() + "\n";
}

std::optional<AgentCall> decode_agent_call(const std::string& line) {
  const std::string magic = std::string(kAgentMagic) + " ";
  if (!line.starts_with(magic)) return {};
  try {
    const nlohmann::json object = nlohmann::json::parse(line.substr(magic.size()));
    AgentCall call;
    call.token = object.at("token");
    call.port = object.at("port");
    call.addresses = object.at("addresses").get<std::vector<std::string>>();
    if (call.token.empty() || call.port == 0) return {};
    return call;
  } catch (const nlohmann::json::exception&) {
    return {};
  }
}

}  // namespace mtl
