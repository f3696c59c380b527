#include "runtime/comm/harness.h"

#include <algorithm>
#include <array>
#include <thread>
#include <unistd.h>

#include <sys/wait.h>

#include <doctest/doctest.h>

#include "common/error.h"
#include "rendezvous/store.h"
#include "runtime/comm/shm/shm_world.h"
#include "runtime/comm/tcp/tcp_world.h"
#include "runtime/comm/world.h"
#include "support/text.h"
#include "support/two_hosts.h"

namespace mtl::test {

namespace {

Outcome outcome_of(const std::function<void()>& action) {
  try {
    action();
    return {};
  } catch (const Error& error) {
    return {error.diagnostics().front().code, error.what()};
  } catch (const std::exception& error) {
    return {"wrong", error.what()};
  }
}

void write_all(int fd, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n <= 0) return;
    done += static_cast<size_t>(n);
  }
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> part;
  ssize_t n = 0;
  while ((n = ::read(fd, part.data(), part.size())) > 0) text.append(part.data(), n);
  return text;
}

}  // namespace

const char* name_of(Transport transport) {
  return transport == Transport::shm ? "shm" : transport == Transport::tcp ? "tcp" : "mixed";
}

std::unique_ptr<CommWorld> make_world(Transport transport, Store& store, int rank, int size,
                                      std::chrono::milliseconds timeout, const std::string& token) {
  switch (transport) {
    case Transport::shm:
      return make_shm_world(store, {.rank = rank, .size = size, .timeout = timeout});
    case Transport::tcp:
      return make_tcp_world(store,
                            {.rank = rank, .size = size, .token = token, .timeout = timeout});
    case Transport::mixed: {
      TwoHosts hosts(store, rank >= size / 2);
      return make_cpu_world(hosts,
                            {.rank = rank, .size = size, .token = token, .timeout = timeout});
    }
  }
  return nullptr;
}

std::vector<Outcome> run_threads(int size, const Body& body, std::chrono::milliseconds timeout,
                                 Transport transport) {
  const auto store = make_local_store();
  std::vector<Outcome> outcomes(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      outcomes[static_cast<size_t>(rank)] = outcome_of([&] {
        const auto world = make_world(transport, *store, rank, size, timeout);
        body(*world);
      });
    });
  }
  for (auto& thread : threads) thread.join();
  return outcomes;
}

std::vector<Outcome> run_processes(int size, const Body& body, std::chrono::milliseconds timeout,
                                   Transport transport) {
  struct Child {
    pid_t pid;
    int port_writer, outcome_reader;
  };
  const std::string token = make_token();
  std::vector<Child> children;
  // All are forked before the server starts its thread.
  for (int rank = 0; rank < size; ++rank) {
    std::array<int, 2> port_pipe, outcome_pipe;
    if (::pipe(port_pipe.data()) != 0 || ::pipe(outcome_pipe.data()) != 0) {
      throw std::runtime_error("pipe");
    }
    const pid_t pid = ::fork();
    if (pid == 0) {
      // A pipe ends when its last writer is gone: keep none of the others'.
      for (const Child& other : children) {
        ::close(other.port_writer);
        ::close(other.outcome_reader);
      }
      ::close(port_pipe[1]);
      ::close(outcome_pipe[0]);
      uint16_t port = 0;
      const bool good = ::read(port_pipe[0], &port, sizeof(port)) == sizeof(port);
      const Outcome outcome = outcome_of([&] {
        expect(good, "no port from the parent");
        const auto store = connect_store({.address = "127.0.0.1", .port = port, .token = token});
        const auto world = make_world(transport, *store, rank, size, timeout);
        body(*world);
      });
      write_all(outcome_pipe[1], outcome.code + "\n" + outcome.text);
      ::_exit(0);
    }
    ::close(port_pipe[0]);
    ::close(outcome_pipe[1]);
    children.push_back({pid, port_pipe[1], outcome_pipe[0]});
  }
  const auto server = serve_store({.token = token});
  const uint16_t port = server->port();
  for (const Child& child : children) {
    (void)!::write(child.port_writer, &port, sizeof(port));
    ::close(child.port_writer);
  }
  std::vector<Outcome> outcomes;
  for (const Child& child : children) {
    const std::string text = read_all(child.outcome_reader);
    ::close(child.outcome_reader);
    const size_t line = text.find('\n');
    Outcome outcome = {"no outcome", ""};
    if (line != std::string::npos) outcome = {text.substr(0, line), text.substr(line + 1)};
    outcomes.push_back(outcome);
  }
  // Only now: until here the dead are zombies, as they are under a launcher that is slow to reap.
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int status = 0;
    ::waitpid(children[rank].pid, &status, 0);
    if (WIFSIGNALED(status)) {
      outcomes[rank] = {"signal " + std::to_string(WTERMSIG(status)), ""};
    }
  }
  return outcomes;
}

std::string problem_of(const std::vector<Outcome>& outcomes) {
  for (size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].code.empty()) continue;
    return "rank " + std::to_string(rank) + ": " + outcomes[rank].code + ": " + outcomes[rank].text;
  }
  return "";
}

void check_all(const std::vector<Outcome>& outcomes, const std::string& code,
               const std::vector<std::string>& parts) {
  for (const Outcome& outcome : outcomes) {
    CAPTURE(outcome.text);
    CHECK(outcome.code == code);
    for (const std::string& part : parts) CHECK(has(outcome.text, part));
  }
}

namespace {

using Run = std::vector<Outcome> (*)(int, const Body&, std::chrono::milliseconds, Transport);

std::string problem_on_any(Run run, int size, const Body& body) {
  for (const Transport transport : kTransports) {
    const std::string problem = problem_of(run(size, body, kLong, transport));
    if (!problem.empty()) return std::string(name_of(transport)) + ": " + problem;
  }
  return "";
}

}  // namespace

std::string threads_problem(int size, const Body& body) {
  return problem_on_any(run_threads, size, body);
}

std::string processes_problem(int size, const Body& body) {
  return problem_on_any(run_processes, size, body);
}

}  // namespace mtl::test
