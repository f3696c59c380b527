// The members of mtl ckpt, and what they share.
#pragma once

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
// What an option needs that is not there.
[[noreturn]] void fail_missing_option(const std::string& command, const std::string& option);

}  // namespace mtl
