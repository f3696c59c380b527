#include "launcher/ssh/agent_talk.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>

#include <sys/socket.h>
#include <sys/un.h>

#include "launcher/ssh/loop.h"

namespace mtl::ssh {

AgentTalk::~AgentTalk() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::shared_ptr<AgentTalk::Talk> AgentTalk::start(ssh_session session, const std::string& path,
                                                  std::string& problem,
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
  auto talk = std::make_shared<Talk>();
  talk->session = session;
  talk->done = std::move(done);
  talk->agent = Fd(fcntl(agent.get(), F_DUPFD_CLOEXEC, 0));
  talk->socket = Fd(fcntl(ssh_get_fd(session), F_DUPFD_CLOEXEC, 0));
  if (!talk->agent || !talk->socket || ssh_set_agent_socket(session, agent.get()) != SSH_OK) {
    problem = strerror(errno);
    return nullptr;
  }
  agent.release();  // libssh closes it with the session
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
    ssh_set_blocking(talk->session, 1);
    const int outcome = ssh_userauth_agent(talk->session, nullptr);
    ssh_set_blocking(talk->session, 0);
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
