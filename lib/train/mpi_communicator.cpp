#include "samba/train/mpi_communicator.h"

#include <dlfcn.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <cstdlib>
#include <thread>

#include "samba/core/interrupt.h"
#include "samba/train/mpi_table.h"

namespace samba {

namespace {

using Clock = std::chrono::steady_clock;

int environment_number(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    const char* text = std::getenv(name);
    if (text != nullptr && *text != '\0') return std::atoi(text);
  }
  return otherwise;
}

constexpr const char* kWayOn = "; the last checkpoint is whole, go on with: samba train --resume RUN";

class MpiRanks final : public Communicator {
 public:
  MpiRanks(const MpiTable& table, int launched) : table_(table) {
    check(table_.start(&rank_, &size_), "MPI cannot start", "");
    if (size_ != launched) {
      refuse_unsupported(std::to_string(launched) + " ranks were started, but samba's MPI sees " +
                         std::to_string(size_) + ": mpirun and samba_mpi.so must be of one MPI");
    }
    patience_ = std::chrono::seconds(std::max(1, environment_number({"SAMBA_RANK_TIMEOUT"}, 600)));
  }
  ~MpiRanks() override {
    // Finalizing waits for all ranks. One that leaves with an error does not wait: mpirun ends the others.
    if (finished_) table_.finish();
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string name() const override { return "MPI"; }
  void finish() override { finished_ = true; }

  void exchange(int to, std::span<const std::byte> sent, int from, std::span<std::byte> received) override {
    check(table_.begin(to, sent.data(), sent.size(), from, received.data(), received.size()));
    const Clock::time_point begin = Clock::now();
    Clock::time_point interrupted_at = Clock::time_point::max();
    for (int looks = 0;; ++looks) {
      int done = 0;
      check(table_.poll(&done));
      if (done != 0) return;
      if (looks < kYields) {
        std::this_thread::yield();
        continue;
      }
      // The others may be computing for long: sleep, more each time.
      const auto pause = std::chrono::microseconds(looks < 10 * kYields ? 20 : 200);
      std::this_thread::sleep_for(pause);
      if (looks % 64 != 0) continue;
      const Clock::time_point now = Clock::now();
      if (now - begin > patience_) lose(from, "does not answer for " + std::to_string(patience_.count()) + " s");
      // mpirun ends the other ranks with SIGTERM when one is lost, and kills them soon after. A user's Ctrl-C looks the
      // same, but then all ranks meet after the step in hand. So: tell, and wait a while.
      if (!interrupt_requested()) continue;
      if (interrupted_at == Clock::time_point::max()) interrupted_at = now;
      if (!told_ && now - interrupted_at > kInterruptHint) {
        told_ = true;
        spdlog::warn("interrupted while waiting for rank {}; if a rank was lost, the last checkpoint is whole", from);
      }
      if (now - interrupted_at > kInterruptPatience) lose(from, "did not come after an interrupt");
    }
  }

 private:
  static constexpr int kYields = 200;
  static constexpr std::chrono::milliseconds kInterruptHint{300};
  static constexpr std::chrono::seconds kInterruptPatience{60};

  [[noreturn]] void lose(int from, const std::string& what) const {
    throw Error(ErrorKind::resource, kLostRankClass,
                "a rank was lost: rank " + std::to_string(from) + " " + what + kWayOn);
  }
  void check(int error, const char* what = "a rank was lost: MPI cannot exchange", const char* way_on = kWayOn) const {
    if (error == 0) return;
    char text[512] = {};
    table_.describe(error, text, sizeof text);
    throw Error(ErrorKind::resource, kLostRankClass, std::string(what) + ": " + text + way_on);
  }

  const MpiTable& table_;
  int rank_ = 0, size_ = 1;
  bool finished_ = false;
  bool told_ = false;
  std::chrono::seconds patience_{600};
};

const MpiTable& load_module(const Path& executable, int size) {
  const Path folder = executable.parent_path();
  std::string tried;
  for (const Path& path : {folder / "samba_mpi.so", folder.parent_path() / "lib/samba/samba_mpi.so"}) {
    std::error_code ignored;
    if (!std::filesystem::exists(path, ignored)) continue;
    // Global: Open MPI's own plug-ins look for its symbols.
    void* module = ::dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
    if (module == nullptr) {
      tried += std::string("; ") + ::dlerror();
      continue;
    }
    const auto get = reinterpret_cast<const MpiTable* (*)()>(::dlsym(module, kMpiTableSymbol));
    const MpiTable* table = get == nullptr ? nullptr : get();
    if (table != nullptr && table->version == kMpiTableVersion) return *table;
    tried += "; " + path.string() + " is of another version";
  }
  refuse_unsupported("mpirun started " + std::to_string(size) +
                     " ranks, but samba has no MPI module here (samba_mpi.so beside the executable or in ../lib/samba; "
                     "it is built where libopenmpi-dev is installed)" +
                     tried);
}

}  // namespace

LaunchedRanks launched_ranks() {
  LaunchedRanks launched;
  launched.size = environment_number({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}, 1);
  launched.rank = environment_number({"OMPI_COMM_WORLD_RANK", "PMI_RANK"}, 0);
  launched.local_size = environment_number({"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}, 1);
  return launched;
}

std::unique_ptr<Communicator> join_ranks(const Path& executable) {
  const LaunchedRanks launched = launched_ranks();
  if (launched.size <= 1) return nullptr;
  return std::make_unique<MpiRanks>(load_module(executable, launched.size), launched.size);
}

}  // namespace samba
