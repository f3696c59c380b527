// MPI_Allreduce as a contestant of all_reduce.cpp.
#include <cstdint>
#include <mpi.h>

#include "rounds.h"

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  bench::run_round(rank, [](float* data, int64_t numel) {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(numel), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  });
  MPI_Finalize();
}
