#include "launcher/ssh/resolver.h"

#include <cstring>
#include <deque>
#include <mutex>
#include <netdb.h>
#include <thread>

#include <fmt/format.h>

#include "launcher/ssh/loop.h"

namespace mtl::ssh {

namespace {

constexpr int kThreads = 8;

Resolved look_up(const std::string& name, int port, int family, int flags) {
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* list = nullptr;
  Resolved resolved;
  const int error = getaddrinfo(name.c_str(), std::to_string(port).c_str(), &hints, &list);
  if (error != 0) {
    resolved.error = error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error);
    return resolved;
  }
  for (const addrinfo* one = list; one != nullptr; one = one->ai_next) {
    Address address;
    memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    resolved.addresses.push_back(address);
  }
  freeaddrinfo(list);
  return resolved;
}

}  // namespace

std::string Address::text() const {
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&storage), size, host, sizeof host, port,
                  sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "?";
  }
  return storage.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port)
                                       : fmt::format("{}:{}", host, port);
}

struct Resolver::State {
  struct Job {
    std::string name;
    int port, family;
    std::function<void(Resolved)> done;
  };
  std::mutex mutex;
  Loop* loop = nullptr;  // null once the resolver is gone
  std::deque<Job> jobs;
  int threads = 0;

  static void work(const std::shared_ptr<State>& state) {
    std::unique_lock lock(state->mutex);
    while (state->loop != nullptr && !state->jobs.empty()) {
      Job job = std::move(state->jobs.front());
      state->jobs.pop_front();
      lock.unlock();
      Resolved resolved = look_up(job.name, job.port, job.family, 0);
      lock.lock();
      if (state->loop != nullptr) {
        state->loop->post([done = std::move(job.done), resolved = std::move(resolved)]() mutable {
          done(std::move(resolved));
        });
      }
    }
    --state->threads;
  }
};

Resolver::Resolver(Loop& loop) : state_(std::make_shared<State>()) {
  state_->loop = &loop;
}

Resolver::~Resolver() {
  const std::lock_guard lock(state_->mutex);
  state_->loop = nullptr;
  state_->jobs.clear();
}

void Resolver::resolve(const std::string& name, int port, int family,
                       std::function<void(Resolved)> done) {
  Resolved numeric = look_up(name, port, family, AI_NUMERICHOST);
  if (!numeric.addresses.empty()) {
    state_->loop->defer([done = std::move(done), numeric = std::move(numeric)]() mutable {
      done(std::move(numeric));
    });
    return;
  }
  const std::lock_guard lock(state_->mutex);
  state_->jobs.push_back({name, port, family, std::move(done)});
  if (state_->threads < kThreads) {
    ++state_->threads;
    // Signals stay blocked in it, as in the thread that starts it.
    std::thread(&State::work, state_).detach();
  }
}

}  // namespace mtl::ssh
