// The main of every test program. A shell that starts it in the background, or nohup, ignores INT,
// QUIT or HUP for it, and what is ignored is inherited: what the tests start is to have the
// defaults.
#define DOCTEST_CONFIG_IMPLEMENT
#include <csignal>

#include <doctest/doctest.h>

int main(int argc, char** argv) {
  for (const int number : {SIGHUP, SIGINT, SIGQUIT, SIGTERM}) std::signal(number, SIG_DFL);
  return doctest::Context(argc, argv).run();
}
