// What the MPI module (mpi_module.cpp, a shared object of its own) gives to samba: plain functions, so that the program
// neither links MPI nor needs it to start.
#pragma once

#include <cstddef>

namespace samba {

struct MpiTable {
  int version;
  // 0, or an error code of MPI. Start: MPI_Init_thread; the environment must be that of mpirun.
  int (*start)(int* rank, int* size);
  int (*finish)();
  // Begins to send and to receive (nothing where bytes is 0); poll until *done is not 0, or give it up.
  int (*begin)(int to, const void* sent, std::size_t sent_bytes, int from, void* received, std::size_t received_bytes);
  int (*poll)(int* done);
  void (*describe)(int error, char* text, std::size_t bytes);
};

inline constexpr int kMpiTableVersion = 1;
inline constexpr const char* kMpiTableSymbol = "samba_mpi_table";  // const MpiTable* samba_mpi_table()

}  // namespace samba
