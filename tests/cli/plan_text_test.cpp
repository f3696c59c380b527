// cli/plan_text: the small pieces of a plan in words.
#include "cli/plan_text.h"

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("ranks are shown as ranges") {
  CHECK(ranks_text({0}) == "0");
  CHECK(ranks_text({0, 1}) == "0 1");
  CHECK(ranks_text({0, 1, 2, 3}) == "0-3");
  CHECK(ranks_text({0, 2, 4, 6}) == "0 2 4 6");
  CHECK(ranks_text({0, 1, 2, 3, 8, 9, 10, 11}) == "0-3 8-11");
  CHECK(ranks_text({0, 2, 4, 6, 8, 10, 12, 14}) == "0 2 4 6 8 10 12 14");
  CHECK(ranks_text({0, 2, 4, 6, 8, 10, 12, 14, 16}) == "0 2 4 6 8 10 12 14 ...");
}

TEST_CASE("a program is drawn by its forwards and backwards") {
  Program program = {{Op::load, 0, 0},      {Op::forward, 0, 0},      {Op::send_act, 0, 0},
                     {Op::recv_grad, 0, 0}, {Op::backward, 0, 0},     {Op::forward, 1, 1},
                     {Op::backward, 1, 1},  {Op::reduce_grads, 0, 0}, {Op::step, 0, 0}};
  CHECK(program_text(program) == "F0 B0 F1.1 B1.1 | reduce step");
  program.clear();
  for (int i = 0; i < 50; ++i) {
    program.push_back({Op::forward, i, 0});
    program.push_back({Op::backward, i, 0});
  }
  program.push_back({Op::step, 0, 0});
  CHECK(program_text(program) ==
        "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 ... F48 B48 F49 B49 | step");
}
