// The members of mtl ckpt, and what they share.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "cli/commands.h"

namespace mtl {

int command_ckpt_ls(const Arguments& args);
int command_ckpt_show(const Arguments& args);
int command_ckpt_verify(const Arguments& args);
int command_ckpt_prune(const Arguments& args);
int command_ckpt_diff(const Arguments& args);
int command_ckpt_average(const Arguments& args);
int command_ckpt_merge(const Arguments& args);
int command_ckpt_reshard(const Arguments& args);
int command_ckpt_export(const Arguments& args);
int command_ckpt_import(const Arguments& args);

// "tp2 pp2 dp4", "1 rank"; "?" when the state does not say.
std::string layout_words(const nlohmann::json& state);
// "123.4 MiB".
std::string size_words(int64_t bytes);
// "5GB", "500 mb", "2GiB", "1000000": bytes, at least one. Throws Error (Exit::usage) usage.value,
// which names the option.
int64_t parse_bytes(const std::string& text, const std::string& option);
// What an option needs that is not there.
[[noreturn]] void fail_missing_option(const std::string& command, const std::string& option);

}  // namespace mtl
