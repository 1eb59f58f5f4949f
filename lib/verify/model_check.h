// The checks of a checkpoint: that its bytes are whole, and that its model keeps the laws of the arithmetic on this
// machine.
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

// The executor of this many threads (0: as many as the user asked for) on a device; "" is the device that is checked.
using MakeExecutor = std::function<std::unique_ptr<Executor>(const std::string& device, int threads)>;

// Checks in this order: checksums; finite weights; decode equals prefill; batch rows independent; 1 thread equals N
// threads; the device equals the reference executor. In another numeric mode than identical, behind the first two:
// deterministic: the same call gives the same bits, with 1 thread and N; and how far decode is from prefill. `done` is
// called after each. A damaged file or a non-finite weight is Error(corrupt), thrown by the load.
std::vector<ModelCheck> check_model(const Path& path, const MakeExecutor& make_executor,
                                    const ModelCheckOptions& options = {},
                                    const std::function<void(const ModelCheck&)>& done = {});

}  // namespace samba::verify
