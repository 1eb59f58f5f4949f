// One decode step of a stack. On an executor that offers it (kernels/step_graph.h) the step is one launch: its calls
// are kept until run(), and values are searched for non-finite ones on the device, the answers read at the end.
// Elsewhere, and where stages are listened to, everything happens at once.
#pragma once

#include <array>
#include <cstdint>

#include "samba/kernels/executor.h"
#include "samba/kernels/step_graph.h"

namespace samba {

// Error(value) of class non_finite that names the tensor and the flat index, with what stands there.
[[noreturn]] void refuse_non_finite(Executor& executor, const char* name, Index index, const float* device);

class DecodeStep {
 public:
  // `kept`: whether the step may be kept. `workspace`: the answers lie there as long as the step lives.
  DecodeStep(Executor& executor, bool kept, Workspace& workspace);
  ~DecodeStep();  // without run(): nothing of what was kept runs
  DecodeStep(const DecodeStep&) = delete;
  DecodeStep& operator=(const DecodeStep&) = delete;

  // Whether the values are refused, if they are, by run(); they must stay until then.
  bool checks_later(const char* name, Index count, const float* device);
  void run();

 private:
  static constexpr std::size_t kMostChecks = 4;
  struct Check {
    const char* name;
    const float* values;
  };

  Executor& executor_;
  StepGraph* graph_;
  std::int64_t* found_ = nullptr;  // device, one a check
  std::array<Check, kMostChecks> checks_{};
  std::size_t count_ = 0;
};

}  // namespace samba
