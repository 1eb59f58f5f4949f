// The one source file that knows MPI, built as a module that mpi_communicator.cpp loads in a process which mpirun
// started. See mpi_table.h.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "samba/train/mpi_table.h"

namespace {

constexpr std::size_t kMostBytes = std::size_t{1} << 30;  // of one message: MPI counts in int

std::vector<MPI_Request>& requests() {
  static std::vector<MPI_Request> pending;
  return pending;
}

int start(int* rank, int* size) {
  int level = 0;
  int error = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &level);
  if (error != MPI_SUCCESS) return error;
  if (level < MPI_THREAD_SERIALIZED) return MPI_ERR_OTHER;
  // A lost rank is for samba to tell, where the library survives it.
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  error = MPI_Comm_rank(MPI_COMM_WORLD, rank);
  return error != MPI_SUCCESS ? error : MPI_Comm_size(MPI_COMM_WORLD, size);
}

int finish() { return MPI_Finalize(); }

template <class Start>
int in_messages(std::size_t bytes, Start&& start_one) {
  for (std::size_t done = 0; done < bytes; done += kMostBytes) {
    MPI_Request request = MPI_REQUEST_NULL;
    const int error = start_one(done, static_cast<int>(std::min(kMostBytes, bytes - done)), &request);
    if (error != MPI_SUCCESS) return error;
    requests().push_back(request);
  }
  return MPI_SUCCESS;
}

int begin(int to, const void* sent, std::size_t sent_bytes, int from, void* received, std::size_t received_bytes) {
  requests().clear();
  const int error = in_messages(received_bytes, [&](std::size_t at, int bytes, MPI_Request* request) {
    return MPI_Irecv(static_cast<char*>(received) + at, bytes, MPI_BYTE, from, 0, MPI_COMM_WORLD, request);
  });
  if (error != MPI_SUCCESS) return error;
  return in_messages(sent_bytes, [&](std::size_t at, int bytes, MPI_Request* request) {
    return MPI_Isend(static_cast<const char*>(sent) + at, bytes, MPI_BYTE, to, 0, MPI_COMM_WORLD, request);
  });
}

int poll(int* done) {
  return MPI_Testall(static_cast<int>(requests().size()), requests().data(), done, MPI_STATUSES_IGNORE);
}

void describe(int error, char* text, std::size_t bytes) {
  char message[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(error, message, &length);
  std::snprintf(text, bytes, "%s", message);
}

}  // namespace

extern "C" const samba::MpiTable* samba_mpi_table() {
  static const samba::MpiTable table{samba::kMpiTableVersion, start, finish, begin, poll, describe};
  return &table;
}
