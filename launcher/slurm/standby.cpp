#include "launcher/slurm/standby.h"

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <unistd.h>

#include <sys/socket.h>
#include <sys/un.h>

#include <fmt/format.h>

namespace mtl {

namespace {

// Tasks of a step are started together; a lead that is not there after that has ended.
constexpr int kLeadPatienceMs = 20'000;
// It may have ended at once, with an error in its command line; by then it would have begun.
constexpr int kStartMs = 1'000;

// In the namespace without files: nothing is left behind, and it ends with its process.
sockaddr_un meeting(const Surroundings& around, socklen_t& length) {
  const char* node = std::getenv("SLURMD_NODENAME");
  const std::string name = fmt::format("mtl-lead-{}-{}.{}-{}", getuid(), around.raw_job_id,
                                       around.step_id, node != nullptr ? node : "");
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t size = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), size);
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

// Also of /proc, whose files end with their process while they are read: what there was of them (an
// iterator over the stream would throw).
std::string content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Whether SLURM's own process above us, if it is that, has no first task (any more).
bool lead_has_ended() {
  const std::string parent = std::to_string(getppid());
  if (!content("/proc/" + parent + "/comm").starts_with("slurmstepd")) return false;
  std::istringstream children(content("/proc/" + parent + "/task/" + parent + "/children"));
  for (std::string pid; children >> pid;) {
    const std::string environment = '\0' + content("/proc/" + pid + "/environ");
    if (environment.find(std::string("\0SLURM_LOCALID=0\0", 17)) != std::string::npos) return false;
  }
  return true;
}

}  // namespace

LeadTask::LeadTask(const Surroundings& around)
    : listener_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  socklen_t length = 0;
  const sockaddr_un address = meeting(around, length);
  // Without it the others end on their own; the run does not depend on them.
  if (bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) {
    listen(listener_.get(), SOMAXCONN);
  }
  // The kernel keeps what is within this task's own limits.
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  sched_setaffinity(0, sizeof all, &all);
}

void stand_by(const Surroundings& around) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGQUIT}) {
    std::signal(signal, SIG_IGN);
  }
  const Fd socket_fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  socklen_t length = 0;
  const sockaddr_un address = meeting(around, length);
  int waited = 0;
  while (connect(socket_fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    if (waited >= kLeadPatienceMs || (waited >= kStartMs && lead_has_ended())) return;
    usleep(20'000);
    waited += 20;
  }
  char c = 0;
  ssize_t got = 0;
  while ((got = read(socket_fd.get(), &c, 1)) > 0 || (got < 0 && errno == EINTR)) continue;
}

}  // namespace mtl
