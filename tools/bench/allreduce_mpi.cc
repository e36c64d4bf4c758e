// The peer of allreduce_tutti: the same loop over MPI_Allreduce. mpirun -np RANKS allreduce_mpi BYTES ITERATIONS
#include <mpi.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  const long n = std::stol(argv[1]) / 4, iterations = std::stol(argv[2]);
  std::vector<float> data(n);
  const auto reduce = [&] {
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(n), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  };
  for (long i = 0; i < n; ++i) data[i] = static_cast<float>(rank + i % 3);
  reduce();
  for (long i = 0; i < n; ++i) {
    if (data[i] != static_cast<float>(world * (world - 1) / 2 + world * (i % 3))) std::abort();
  }
  for (long i = 0; i < n; ++i) data[i] = 0;
  for (long i = 0; i < 1 + iterations / 10; ++i) reduce();
  MPI_Barrier(MPI_COMM_WORLD);
  const auto begin = std::chrono::steady_clock::now();
  for (long i = 0; i < iterations; ++i) reduce();
  const std::chrono::duration<double, std::micro> elapsed = std::chrono::steady_clock::now() - begin;
  if (rank == 0) std::printf("%.3f\n", elapsed.count() / static_cast<double>(iterations));
  MPI_Finalize();
  return 0;
}
