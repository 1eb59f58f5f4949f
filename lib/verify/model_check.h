// The checks of a checkpoint: that its bytes are whole, and that its model keeps the laws of the arithmetic on this
// machine. Every check says what it covered; the last one proves that the checks themselves can see a difference of
// one ulp in any piece of a decode state.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "samba/core/array.h"
#include "samba/core/files.h"
#include "samba/kernels/executor.h"

namespace samba::verify {

struct ModelCheck {
  std::string name;  // "decode equals prefill"
  bool passed = true;
  std::string detail;  // what was compared, or the first difference
  double seconds = 0.0;
};

struct ModelCheckOptions {
  Index length = 96;       // positions of the comparisons
  Index rows = 3;          // of the batch
  std::uint64_t seed = 1;  // of the token ids, which are drawn
};

struct ExecutorChoice {
  std::string device;           // empty: the device that is checked
  std::string instruction_set;  // empty: the one the user chose
  int threads = 0;              // 0: as many as the user asked for
};
using MakeExecutor = std::function<std::unique_ptr<Executor>(const ExecutorChoice&)>;

// Checks in this order: checksums; finite weights; decode equals prefill (states included); chunks of any size; batch
// rows independent, in any composition and ragged; 1 thread equals N threads; every instruction set; packed weights
// equal their expansion; the device equals the reference executor; differences are seen. In another numeric mode than
// identical, behind the first two: deterministic: the same call gives the same bits, with 1 thread and N; and how far
// decode is from prefill. `done` is called after each. A damaged file or a non-finite weight is Error(corrupt), thrown
// by the load. `instruction_sets`: those of the cpu.
std::vector<ModelCheck> check_model(const Path& path, const MakeExecutor& make_executor,
                                    const std::vector<std::string>& instruction_sets,
                                    const ModelCheckOptions& options = {},
                                    const std::function<void(const ModelCheck&)>& done = {});

}  // namespace samba::verify
