#include "launcher/ssh/agent_talk.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <poll.h>
#include <system_error>

#include <sys/socket.h>
#include <sys/un.h>

#include "launcher/ssh/loop.h"

namespace mtl::ssh {

namespace {

// libssh does not block here but for the agent: while it waits for the server it would not notice
// that the server has hung up, as sshd does after too many keys, and wait for ever.
int authenticate(ssh_session session) {
  for (;;) {
    const int outcome = ssh_userauth_agent(session, nullptr);
    if (outcome != SSH_AUTH_AGAIN) return outcome;
    if (!ssh_is_connected(session)) return SSH_AUTH_ERROR;
    const bool write = (ssh_get_poll_flags(session) & SSH_WRITE_PENDING) != 0;
    pollfd server = {ssh_get_fd(session), static_cast<short>(write ? POLLIN | POLLOUT : POLLIN), 0};
    poll(&server, 1, -1);
  }
}

}  // namespace

AgentTalk::~AgentTalk() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<AgentTalk::Talk> AgentTalk::start(ssh_session session, const std::string& path,
                                                  AgentKeys keys, std::string& problem,
                                                  std::function<void(int outcome)> done) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    problem = "the path of the agent's socket is too long";
    return nullptr;
  }
  memcpy(address.sun_path, path.c_str(), path.size());
  Fd agent(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!agent ||
      connect(agent.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    problem = strerror(errno);
    return nullptr;
  }
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    problem = strerror(errno);
    return nullptr;
  }
  Fd theirs(ends[0]);
  auto talk = std::make_shared<Talk>();
  talk->session = session;
  talk->keys = std::move(keys);
  talk->done = std::move(done);
  talk->agent = std::move(agent);
  talk->client = Fd(ends[1]);
  talk->socket = Fd(fcntl(ssh_get_fd(session), F_DUPFD_CLOEXEC, 0));
  fcntl(talk->agent.get(), F_SETFL, fcntl(talk->agent.get(), F_GETFL) & ~O_NONBLOCK);
  fcntl(theirs.get(), F_SETFL, fcntl(theirs.get(), F_GETFL) | O_NONBLOCK);
  if (!talk->socket || ssh_set_agent_socket(session, theirs.get()) != SSH_OK) {
    problem = strerror(errno);
    return nullptr;
  }
  theirs.release();  // libssh closes it with the session
  const std::lock_guard lock(mutex_);
  waiting_.push_back(talk);
  if (idle_ == 0 && threads_.size() < static_cast<size_t>(at_once_)) {
    threads_.emplace_back([this] { work(); });
  }
  changed_.notify_one();
  return talk;
}

void AgentTalk::abandon(const std::shared_ptr<Talk>& talk) {
  std::unique_lock lock(mutex_);
  talk->abandoned = true;
  if (!talk->running) return;
  shutdown(talk->agent.get(), SHUT_RDWR);
  shutdown(talk->socket.get(), SHUT_RDWR);
  changed_.wait(lock, [&] { return talk->over; });
}

void AgentTalk::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return closing_ || !waiting_.empty(); });
    --idle_;
    if (closing_) return;
    const std::shared_ptr<Talk> talk = std::move(waiting_.front());
    waiting_.pop_front();
    if (talk->abandoned) continue;
    talk->running = true;
    lock.unlock();
    int outcome = SSH_AUTH_ERROR;
    try {
      const AgentFilter filter(talk->agent.get(), talk->client.get(), talk->keys);
      outcome = authenticate(talk->session);
    } catch (const std::system_error&) {
      // No thread is to be had: this host cannot be reached, the others may be.
    }
    lock.lock();
    talk->over = true;
    changed_.notify_all();
    if (talk->abandoned) continue;
    loop_.post([talk, outcome] {
      if (!talk->abandoned) talk->done(outcome);
    });
  }
}

}  // namespace mtl::ssh
