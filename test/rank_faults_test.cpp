// Several ranks write a checkpoint together (train/shared_file.h) while a system call of one of them fails.
#include <catch2/catch.hpp>
#include <mutex>

#include "file_faults.h"
#include "samba/backends/registry.h"
#include "samba/core/error.h"
#include "samba/core/json_fields.h"
#include "samba/train/checkpoint.h"
#include "samba/train/local_communicator.h"
#include "temporary_folder.h"

namespace samba {
namespace {

// A Samba stack is saved as a streamed archive, the other one as samba.stack.v1.
const char* const kModels[] = {
    R"({"vocab": 40, "d_model": 32, "layers": ["mamba3", "attention"], "n_heads": 2, "intermediate": 40})",
    R"({"vocab": 40, "d_model": 32, "tie_embeddings": false,
        "layers": [{"kind": "transformer", "n_heads": 2, "intermediate": 40, "window": 16}]})"};

const std::pair<const char*, faults::Call*> kCalls[] = {{"write", &faults::write}, {"pwrite", &faults::pwrite},
                                                        {"read", &faults::read},   {"fsync", &faults::fsync},
                                                        {"close", &faults::close}, {"rename", &faults::rename}};

struct Outcome {
  int refused = 0;  // ranks
  bool met = true;  // the faulty call was made
};

class RanksThatSave {
 public:
  RanksThatSave(const char* model, int count) : count_(count) {
    const auto executor = make_executor("cpu", {1, ""});
    const auto trainer =
        SambaTrainer::create(*executor, stack_config_from_json(parse_json(model, "model")), 7, OptimizerSettings{});
    save_checkpoint(*trainer, folder_ / "source");
    wanted_ = read_file(folder_ / "source");
  }

  Path target() const { return folder_ / "target"; }
  const std::string& wanted() const { return wanted_; }
  std::size_t entries() const { return folder_.entries(); }

  // Every rank reads the model and saves it as target(); `arm` is called in between.
  Outcome save(const std::function<void()>& arm) const {
    Outcome outcome;
    std::mutex mutex;
    LocalRanks(count_).run([&](Communicator& communicator) {
      const auto executor = make_executor("cpu", {1, ""});
      const auto trainer = load_for_training(*executor, folder_ / "source", {}, {&communicator, 16, 64, 64});
      barrier(communicator);
      if (communicator.rank() == 0) arm();
      barrier(communicator);
      try {
        save_checkpoint(*trainer, target());
      } catch (const Error& error) {
        const std::lock_guard lock(mutex);
        ++outcome.refused;
        CHECK(error.kind() == ErrorKind::resource);
      }
    });
    for (const auto& [name, call] : kCalls) outcome.met = outcome.met && call->failing == 0;
    faults::reset();
    return outcome;
  }

 private:
  int count_;
  TemporaryFolder folder_;
  std::string wanted_;
};

}  // namespace

TEST_CASE("whichever call of whichever rank fails in a common save: one outcome for all, a whole file, nothing else") {
  int refused = 0, tolerated = 0;
  for (const char* model : kModels) {
    for (const int count : {2, 4}) {
      const RanksThatSave ranks(model, count);
      for (const auto& [name, call] : kCalls) {
        // Until the faulty call is none of them.
        bool met = true;
        for (int number = 1; met; ++number) {
          write_file_atomically(ranks.target(), "what was there before");
          const Outcome outcome = ranks.save([&, failing = call] {
            faults::reset();
            faults::error = number % 2 == 0 ? EIO : ENOSPC;
            failing->failing = number;
          });
          met = outcome.met;
          INFO(model << ", " << count << " ranks: " << name << " no. " << number);
          CHECK((outcome.refused == 0 || outcome.refused == count));
          CHECK(ranks.entries() == 2);
          const std::string now = read_file(ranks.target());
          CHECK((met || outcome.refused == 0));
          if (outcome.refused == 0) {
            CHECK(now == ranks.wanted());
            tolerated += met ? 1 : 0;
          } else {
            CHECK((now == "what was there before" || (now == ranks.wanted() && std::string(name) == "fsync")));
            ++refused;
          }
        }
      }
    }
  }
  CHECK(refused > 40);
  WARN(refused + tolerated << " faults: " << refused << " refused by all ranks, " << tolerated
                           << " without consequence");
}

}  // namespace samba
