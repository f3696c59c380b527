// Several "machines" on one: each has its own network, host name, pids, mounts, shared memory and a
// real sshd. They hang on two networks; cables can be cut, power can fail, a machine can hang.
// Needs root. Nothing of it has a name outside its namespaces but a folder in /tmp and a cgroup of
// the same name, so that any number of labs run beside each other.
//
//   machine   name   eth0                    eth1
//   0         head   10.77.0.254 fd77::fe    10.78.0.254 fd78::fe    where commands are typed
//   i >= 1    m<i>   10.77.0.<i> fd77::<i>   10.78.0.<i> fd78::<i>   sshd on port 22
//
// /etc/hosts knows head and m<i> (IPv4 of eth0), m<i>-6 (IPv6 of eth0) and m<i>-eth1. There is no
// route out and no DNS. root's home differs on every machine and holds the keys, so `ssh m1` works
// from everywhere. The file system is the host's, but for /mnt/local, /run and /dev/shm, which are
// each machine's own (the head has its own /dev/shm).
//
// One process of the lab, the warden, owns all of it and ends it when this side's end of their
// socket closes, however the test dies; the machines die with the warden.
#pragma once

#include <chrono>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "cluster/lab/command.h"

namespace mtl::test {

class Lab {
 public:
  // Up when it returns: every sshd answers. Throws std::runtime_error.
  explicit Lab(int machines = 4);
  ~Lab();
  Lab(const Lab&) = delete;
  Lab& operator=(const Lab&) = delete;
  // Why a lab cannot be made here, in one line; empty if it can.
  static std::string missing();

  int machines() const { return machines_; }
  const std::filesystem::path& dir() const { return dir_; }  // removed with the lab
  std::filesystem::path home(int machine) const;
  std::filesystem::path ssh_config() const;  // what the head's ~/.ssh/config is
  std::filesystem::path host_key(int machine) const;
  static std::string name(int machine);
  // network 0 = eth0, 1 = eth1
  static std::string address(int machine, int network = 0, bool ipv6 = false);

  // Starts a program on a machine directly, without ssh; it dies with the Command. HOME is set, the
  // working directory is dir()/work. Not on a frozen machine.
  Command start(int machine, const std::vector<std::string>& argv,
                const std::map<std::string, std::string>& env = {}) const;
  CommandEnd run(int machine, const std::vector<std::string>& argv,
                 const std::map<std::string, std::string>& env = {},
                 std::chrono::seconds within = std::chrono::seconds(60)) const;
  CommandEnd head(const std::vector<std::string>& argv,
                  const std::map<std::string, std::string>& env = {},
                  std::chrono::seconds within = std::chrono::seconds(60)) const {
    return run(0, argv, env, within);
  }

  // The verbs; each has taken effect when it returns.
  void kill(int machine);    // power loss: no goodbye on any connection
  void boot(int machine);    // power on again after kill(); fresh memory, the same keys
  void freeze(int machine);  // a hung machine: the kernel acknowledges, no process runs
  void thaw(int machine);
  void cut(int machine, int network = -1);  // the cable; -1 = both
  void heal(int machine, int network = -1);
  // Of eth0, both directions; 0 = none. They hold together; the last of each counts.
  void loss(int machine, int percent);
  void delay(int machine, std::chrono::milliseconds round_trip);
  void stop_sshd(int machine);   // connections are refused; sessions go on
  void start_sshd(int machine);  // reads its config again, see sshd_config()
  std::filesystem::path sshd_config(int machine) const;

  // What runs there beyond the machine's own first process and its sshd.
  struct Process {
    pid_t pid = 0;  // as seen from here
    std::string command;
  };
  std::vector<Process> processes(int machine) const;

 private:
  std::string ask(const std::string& request) const;
  void shape(int machine) const;

  int machines_ = 0;
  std::filesystem::path dir_;
  int socket_ = -1;
  pid_t warden_ = -1;
  struct Machine {
    pid_t init = -1;
    int pidfd = -1;
    std::string cgroup_procs;
    bool frozen = false;
    int loss_percent = 0;
    std::chrono::milliseconds round_trip{0};
  };
  std::vector<Machine> inits_;  // by machine
  mutable int commands_ = 0;
};

}  // namespace mtl::test
