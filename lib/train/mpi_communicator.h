// Ranks that are processes under mpirun.
//
// samba does not link MPI: a module, samba_mpi.so beside the executable or in ../lib/samba, is loaded when the
// environment says that mpirun (or srun with PMI) started the process, and only then.
#pragma once

#include <memory>

#include "samba/core/files.h"
#include "samba/train/communicator.h"

namespace samba {

struct LaunchedRanks {
  int rank = 0;
  int size = 1;
  int local_size = 1;  // ranks on this host
};
// From the environment, without MPI; size 1 when the process stands alone.
LaunchedRanks launched_ranks();

// Null for a process that was not started with others. Collective. Error(unsupported) when it was, but this build has
// no MPI module or the module's MPI is not here. `executable`: the program's own path. A wait longer than
// $SAMBA_RANK_TIMEOUT seconds (default 600) is a lost rank, so is an interrupt that lasts.
std::unique_ptr<Communicator> join_ranks(const Path& executable);

}  // namespace samba
