#include "launcher/settings/secret.h"

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

namespace {

// "TOKEN", "HFTOKEN", "tokens", "KEY2"; not "TOKENIZERS", "KEYBOARD", "AUTHOR".
bool is_secret_word(std::string word) {
  while (!word.empty() && word.back() >= '0' && word.back() <= '9') word.pop_back();
  if (word.ends_with('S')) word.pop_back();
  return word.ends_with("TOKEN") || word.ends_with("KEY") || word.ends_with("AUTH");
}

// One that counts here: none of these is a secret.
bool is_launch_setting(const std::string& upper_name) {
  std::string name = lower(upper_name);
  if (name.starts_with("mtl_") || name.starts_with("pet_")) name.erase(0, 4);
  const LaunchFlag* flag = find_launch_flag(name);
  return flag != nullptr && flag->meaningless.empty();
}

}  // namespace

bool is_secret(const std::string& given) {
  const std::string name =
      upper(given.substr(std::min(given.find_first_not_of(' '), given.size())));
  if (name.ends_with("_FILE") || name.ends_with("_FD") || is_launch_setting(name)) return false;
  for (const char* part :
       {"SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "AUTHORIZATION", "AUTHENTICATION"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  std::string word;
  for (const char c : name + '_') {
    if ((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')) {
      word += c;
    } else if (is_secret_word(std::exchange(word, {}))) {
      return true;
    }
  }
  return false;
}

}  // namespace mtl
