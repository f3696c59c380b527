#include "launcher/kubernetes/options.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <regex>
#include <set>
#include <string_view>

#include <fmt/format.h>

namespace mtl {

namespace {

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_alnum(char c) {
  return is_lower(c) || is_digit(c) || (c >= 'A' && c <= 'Z');
}

// DNS-1123 label: lower case, digits, dashes within.
bool is_label(std::string_view text, size_t longest = 63) {
  return !text.empty() && text.size() <= longest && text.front() != '-' && text.back() != '-' &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return is_lower(c) || is_digit(c) || c == '-'; });
}

// DNS-1123 subdomain: labels with dots between.
bool is_subdomain(std::string_view text) {
  if (text.size() > 253) return false;
  for (size_t from = 0; from <= text.size();) {
    const size_t dot = std::min(text.find('.', from), text.size());
    if (!is_label(text.substr(from, dot - from))) return false;
    from = dot + 1;
  }
  return true;
}

// The value of a label, the name behind a key's slash: letters, digits and -_. within.
bool is_label_value(std::string_view text) {
  return text.size() <= 63 && (text.empty() || (is_alnum(text.front()) && is_alnum(text.back()))) &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return is_alnum(c) || c == '-' || c == '_' || c == '.'; });
}

// "disktype", "nvidia.com/gpu.product".
bool is_qualified(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string_view name = slash == std::string_view::npos ? text : text.substr(slash + 1);
  if (slash != std::string_view::npos && !is_subdomain(text.substr(0, slash))) return false;
  return !name.empty() && is_label_value(name);
}

// "64Gi", "1.5", "500m": a positive number with one of the API's suffixes.
bool is_quantity(std::string_view text) {
  static const std::set<std::string_view> suffixes = {"",  "m",  "k",  "M",  "G",  "T",
                                                      "P", "Ki", "Mi", "Gi", "Ti", "Pi"};
  size_t at = 0;
  size_t digits = 0, dots = 0;
  double value = 0;
  for (; at < text.size() && (is_digit(text[at]) || text[at] == '.'); ++at) {
    if (text[at] == '.') {
      ++dots;
    } else {
      ++digits;
      value += text[at] - '0';
    }
  }
  return digits > 0 && digits < 16 && dots < 2 && value > 0 && text[at - 1] != '.' &&
         suffixes.contains(text.substr(at));
}

// registry.example.org:5000/group/image:tag@sha256:0123... as container runtimes read it (the
// grammar of distribution/reference): upper case is for the registry and the tag, and a digest is
// whole.
bool is_image(std::string_view text) {
  static const std::string label = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?";
  static const std::string part = "[a-z0-9]+(?:(?:\\.|__?|-+)[a-z0-9]+)*";
  static const std::regex image(
      fmt::format(
          "(?:{0}(?:\\.{0})*(?::[0-9]+)?/)?{1}(?:/{1})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?"
          "(?:@(?:sha256:[0-9a-f]{{64}}|sha512:[0-9a-f]{{128}}))?",
          label, part),
      std::regex::optimize);
  return text.size() < 512 && std::regex_match(text.begin(), text.end(), image);
}

bool is_path(std::string_view text) {
  return text.size() > 1 && text.size() < 1024 && text.front() == '/' &&
         text.find(':') == std::string_view::npos && text.find("..") == std::string_view::npos &&
         std::all_of(text.begin(), text.end(), [](char c) {
           return is_alnum(c) || std::string_view("/-_.+@ ").find(c) != std::string_view::npos;
         });
}

bool is_variable(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_alnum(c) || c == '_'; });
}

constexpr size_t kLongestName = 40;

// "-5c20e1" of what does not fit: names that begin alike are other jobs (FNV-1a, folded).
std::string told_apart(const std::string& text) {
  uint32_t hash = 2166136261U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619U;
  return fmt::format("-{:06x}", (hash >> 24 ^ hash) & 0xffffff);
}

// "My run_v2" -> "my-run-v2"; begins with a letter, since a Service has this name, too.
std::string fitting_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const char lower = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    const bool fits = is_lower(lower) || is_digit(lower);
    if (fits) name += lower;
    if (!fits && !name.empty() && name.back() != '-') name += '-';
  }
  if (!name.empty() && !is_lower(name.front())) name.insert(0, "mtl-");
  const std::string tail = name.size() > kLongestName ? told_apart(text) : "";
  name.resize(std::min(name.size(), kLongestName - tail.size()));
  while (!name.empty() && name.back() == '-') name.pop_back();
  return name.empty() ? "mtl" : name + tail;
}

class Options {
 public:
  Options(const LaunchRequest& request, Diagnostics& diagnostics)
      : request_(request), diagnostics_(diagnostics) {}

  KubernetesOptions read(const std::string& default_name) {
    if (const std::string kind = text("kind"); !kind.empty()) out_.kind = kind;
    // A pod's name has this one and some more, and is a host's name, which has 63 letters.
    out_.name = text("name");
    if (out_.name.empty()) {
      out_.name = fitting_name(default_name);
    } else if (!is_label(out_.name, kLongestName) || !is_lower(out_.name.front())) {
      wrong("name", out_.name, "at most 40 lower-case letters, digits and dashes, a letter first");
    }
    out_.name_space = checked(
        "namespace", [](auto t) { return is_label(t); },
        "at most 63 lower-case letters, digits and dashes");
    out_.image = checked("image", is_image, "an image as registry/group/name:tag");
    if (text("image").empty()) {
      diagnostics_.add({.code = "kubernetes.missing",
                        .what = "no image for the pods",
                        .help = "add --kubernetes_image IMAGE, one with mtl (or the program) in "
                                "it"});
    }
    read_ranks();
    read_resources();
    read_claims();
    read_user();
    read_scheduling();
    out_.grace_s = seconds("grace", out_.grace_s);
    if (out_.grace_s < 1) wrong("grace", text("grace"), "a second at least, or nobody hears TERM");
    out_.max_restarts = whole("max_restarts", out_.max_restarts);
    out_.one_per_host = yes("one_per_host");
    out_.apply = yes("apply");
    return std::move(out_);
  }

 private:
  const std::vector<std::string>& list(const std::string& name) const {
    static const std::vector<std::string> none;
    const auto found = request_.kubernetes.find(name);
    return found == request_.kubernetes.end() ? none : found->second;
  }
  std::string text(const std::string& name) const {
    return list(name).empty() ? "" : list(name).back();
  }
  bool yes(const std::string& name) const { return truth_of(text(name)).value_or(false); }
  int whole(const std::string& name, int fallback) const {
    return text(name).empty() ? fallback : std::atoi(text(name).c_str());
  }
  // "300", "90s", "5m", "1h".
  int seconds(const std::string& name, int fallback) const {
    const std::string value = text(name);
    if (value.empty()) return fallback;
    const double unit = value.back() == 'h' ? 3600 : value.back() == 'm' ? 60 : 1;
    return static_cast<int>(std::lround(std::atof(value.c_str()) * unit));
  }

  std::string origin(const std::string& name) const {
    const auto found = request_.scheduler_origins.find("kubernetes_" + name);
    return found == request_.scheduler_origins.end() ? "kubernetes_" + name : found->second;
  }
  void wrong(const std::string& name, const std::string& value, const std::string& wants) {
    diagnostics_.add({.code = "kubernetes.value",
                      .what = fmt::format("{} wants {}, got '{}'", origin(name), wants, value),
                      .help = "correct it; see: mtl help launch-flags"});
  }
  template <class Check>
  std::string checked(const std::string& name, const Check& fits, const std::string& wants) {
    const std::string value = text(name);
    if (!value.empty() && !fits(std::string_view(value))) wrong(name, value, wants);
    return value;
  }

  void read_ranks() {
    if (request_.mode == LaunchRequest::Mode::hosts) {
      diagnostics_.add({.code = "kubernetes.conflict",
                        .what = "hosts are given, but Kubernetes chooses the hosts of pods",
                        .help = "say how many pods there are: --num_machines N"});
    }
    if (request_.min_nodes != request_.max_nodes) {
      diagnostics_.add({.code = "kubernetes.conflict",
                        .what = fmt::format("{}:{} machines, but a job of Kubernetes has one "
                                            "number of pods",
                                            request_.min_nodes, request_.max_nodes),
                        .help = fmt::format("--num_machines {}", request_.max_nodes)});
    }
    out_.nodes = request_.max_nodes;
    int each = request_.local_ranks;
    if (out_.nodes == 1 && request_.ranks > 0) each = request_.ranks;
    const bool gpus_given = !text("gpus").empty();
    out_.gpus = whole("gpus", 0);
    if (each > 0 && (request_.ranks_said || gpus_given || request_.config.use_cpu)) {
      out_.ranks_per_node = each;
      if (!gpus_given && !request_.config.use_cpu) out_.gpus = each;
    } else {
      // As many as it has GPUs, so somebody has to say how many that are.
      out_.ranks_per_node = std::max(1, out_.gpus);
      if (!gpus_given && !request_.config.use_cpu) {
        diagnostics_.add({.code = "kubernetes.missing",
                          .what = "nobody says how many GPUs and ranks a pod has",
                          .help = "add --nproc_per_node 8 (as many ranks and GPUs), or "
                                  "--kubernetes_gpus; without GPUs --cpu"});
      }
    }
    if (out_.gpus > 0 && request_.config.use_cpu) {
      diagnostics_.add({.code = "kubernetes.conflict",
                        .what = fmt::format("{} GPUs for pods that train on the CPU", out_.gpus),
                        .help = "leave out --kubernetes_gpus or --cpu"});
    } else if (out_.gpus > 0 && out_.ranks_per_node > out_.gpus) {
      diagnostics_.add(
          {.code = "kubernetes.conflict",
           .what = fmt::format("{} ranks in a pod of {} GPUs", out_.ranks_per_node, out_.gpus),
           .help = fmt::format("--nproc_per_node {}", out_.gpus)});
    }
  }

  void read_resources() {
    if (const std::string name =
            checked("gpu_resource", is_qualified, "the name of a resource, as nvidia.com/gpu");
        !name.empty()) {
      out_.gpu_resource = name;
    }
    const char* wants = "a quantity as 16, 500m or 64Gi";
    out_.cpus = checked("cpus", is_quantity, wants);
    out_.memory = checked("memory", is_quantity, wants);
    out_.shm = checked("shm", is_quantity, wants);
  }

  // "CLAIM:PATH[:ro]".
  void add_claim(const std::string& flag, const std::string& value, const std::string& usual) {
    KubernetesOptions::Claim claim;
    std::string rest = value;
    if (rest.ends_with(":ro")) {
      claim.read_only = true;
      rest.resize(rest.size() - 3);
    }
    const size_t colon = rest.find(':');
    claim.name = rest.substr(0, colon);
    claim.path = colon == std::string::npos ? usual : rest.substr(colon + 1);
    while (claim.path.size() > 1 && claim.path.ends_with('/')) claim.path.pop_back();
    if (!is_subdomain(claim.name) || !is_path(claim.path)) {
      return wrong(flag, value, "CLAIM:/PATH, perhaps with :ro behind it");
    }
    for (const char* taken : {"/dev/shm", "/run/mtl", "/etc/mtl"}) {
      // What is mounted within another volume needs a folder there, which these have not.
      if ((claim.path + '/').starts_with(std::string(taken) + '/')) {
        return wrong(flag, value, fmt::format("another path than {}, and none within", taken));
      }
    }
    for (const KubernetesOptions::Claim& other : out_.claims) {
      if (other.path == claim.path) return wrong(flag, value, "a path that is not taken yet");
    }
    out_.claims.push_back(std::move(claim));
  }

  void read_claims() {
    if (const std::string value = text("checkpoint_pvc"); !value.empty()) {
      add_claim("checkpoint_pvc", value, "/checkpoints");
      if (!out_.claims.empty()) {
        out_.working_dir = out_.claims.front().path;
        if (out_.claims.front().read_only) {
          wrong("checkpoint_pvc", value, "a claim that can be written");
        }
      }
    }
    for (const std::string& value : list("pvc")) add_claim("pvc", value, "");
  }

  // "UID[:GID]"; without the second the group has the first one's number.
  void read_user() {
    const std::string value = text("user");
    if (value.empty()) return;
    const size_t colon = std::min(value.find(':'), value.size());
    const std::string user = value.substr(0, colon);
    const std::string group = colon < value.size() ? value.substr(colon + 1) : user;
    // Kubernetes' largest has ten digits, and OpenShift's begin at 1,000,000,000.
    constexpr long kMost = 2'147'483'647;
    const auto number = [](const std::string& word) -> long {
      const bool fits = !word.empty() && word.size() <= 10 && std::ranges::all_of(word, is_digit);
      const long id = fits ? std::stol(word) : -1;
      return id <= kMost ? id : -1;
    };
    out_.user = number(user);
    out_.group = number(group);
    if (out_.user < 0 || out_.group < 0) wrong("user", value, "one number or two, UID[:GID]");
  }

  void read_scheduling() {
    for (const std::string& value : list("node_selector")) {
      const size_t equals = value.find('=');
      const std::string key = value.substr(0, equals);
      const std::string word = equals == std::string::npos ? "" : value.substr(equals + 1);
      if (equals == std::string::npos || !is_qualified(key) || !is_label_value(word)) {
        wrong("node_selector", value, "LABEL=VALUE");
      } else {
        out_.node_selector.push_back({key, word});
      }
    }
    for (const std::string& value : list("toleration")) add_toleration(value);
    const char* wants = "a name of lower-case letters, digits, dashes and dots";
    out_.service_account = checked("service_account", is_subdomain, wants);
    out_.priority_class = checked("priority_class", is_subdomain, wants);
    out_.queue = checked("queue", is_subdomain, wants);
    for (const std::string& value : list("image_pull_secret")) {
      if (!is_subdomain(value)) wrong("image_pull_secret", value, wants);
      out_.image_pull_secrets.push_back(value);
    }
    for (const std::string& value : list("env_secret")) {
      const size_t equals = value.find('=');
      const size_t colon = value.rfind(':');
      const bool whole =
          equals != std::string::npos && colon != std::string::npos && colon > equals;
      KubernetesOptions::EnvSecret one;
      if (whole) {
        one = {value.substr(0, equals), value.substr(equals + 1, colon - equals - 1),
               value.substr(colon + 1)};
      }
      if (!whole || !is_variable(one.variable) || !is_subdomain(one.secret) || one.key.empty() ||
          !is_label_value(one.key)) {
        wrong("env_secret", value, "VARIABLE=SECRET:KEY");
      } else if (one.variable == "MTL_TOKEN_FILE" || one.variable == "MTL_CONFIG_FILE") {
        wrong("env_secret", value, "another variable than those that mtl gives its pods");
      } else if (std::ranges::any_of(out_.env_secrets, [&](const auto& other) {
                   return other.variable == one.variable;
                 })) {
        wrong("env_secret", value, "a variable that is not taken yet");
      } else {
        out_.env_secrets.push_back(std::move(one));
      }
    }
  }

  // "KEY[=VALUE][:EFFECT]", as kubectl taint writes a taint.
  void add_toleration(const std::string& value) {
    KubernetesOptions::Toleration one;
    std::string rest = value;
    bool right = true;
    if (const size_t colon = rest.rfind(':'); colon != std::string::npos) {
      one.effect = rest.substr(colon + 1);
      rest.resize(colon);
      static constexpr std::array<std::string_view, 3> kEffects = {"NoSchedule", "PreferNoSchedule",
                                                                   "NoExecute"};
      right = std::find(kEffects.begin(), kEffects.end(), one.effect) != kEffects.end();
    }
    const size_t equals = rest.find('=');
    one.key = rest.substr(0, equals);
    if (equals != std::string::npos) one.value = rest.substr(equals + 1);
    if (!right || !is_qualified(one.key) || !is_label_value(one.value)) {
      return wrong("toleration", value, "KEY[=VALUE][:NoSchedule|PreferNoSchedule|NoExecute]");
    }
    out_.tolerations.push_back(std::move(one));
  }

  const LaunchRequest& request_;
  Diagnostics& diagnostics_;
  KubernetesOptions out_;
};

}  // namespace

KubernetesOptions kubernetes_options(const LaunchRequest& request, const std::string& default_name,
                                     Diagnostics& diagnostics) {
  return Options(request, diagnostics).read(default_name);
}

}  // namespace mtl
